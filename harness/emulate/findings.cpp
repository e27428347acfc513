#include "harness/emulate/findings.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <iomanip>
#include <sstream>

#include "common/emulator/rules.h"

namespace flashsteps {
namespace {

constexpr const char* kPage = "docs/findings.md#";  // and the rule's name

// As common/emulator/report.cpp compares them.
bool are_alike(const json& a, const json& b) {
  const auto pair = [](const json& finding) {
    std::vector<json> places = finding["places"];
    places.resize(2);
    std::ranges::sort(places);
    return places;
  };
  return a["rule"] == b["rule"] && pair(a) == pair(b);
}

// Of a path as it is in reports: relative to the current folder, or absolute.
std::string uri_of(const std::string& path) {
  std::ostringstream uri;
  if (path.starts_with('/')) uri << "file://";
  for (const char c : path) {
    const bool is_plain = std::isalnum(static_cast<unsigned char>(c)) || std::strchr("/-._~", c) != nullptr;
    if (is_plain)
      uri << c;
    else
      uri << '%' << std::uppercase << std::hex << std::setw(2) << std::setfill('0') << (unsigned(c) & 0xff);
  }
  return uri.str();
}

json location_of(const json& place) {
  json physical{{"artifactLocation", {{"uri", uri_of(place["file"])}}}};
  if (place.contains("line")) physical["region"] = {{"startLine", place["line"]}};
  return {{"physicalLocation", physical}};
}

json sarif_rule(const emulator::Rule& rule) {
  const std::string text = std::string(rule.means) + " " + rule.mend;
  return {{"id", rule.name},
          {"shortDescription", {{"text", rule.means}}},
          {"help", {{"text", text + " See " + kPage + rule.name + " in FlashSteps."}}},
          // SARIF wants an absolute one.
          {"helpUri", uri_of(FLASHSTEPS_ROOT "/") + kPage + rule.name}};
}

json sarif_result(const json& finding) {
  const json& places = finding["places"];
  json related = json::array();
  const auto add_related = [&](const json& place, const char* text) {
    related.push_back(location_of(place));
    related.back()["id"] = related.size();
    related.back()["message"] = {{"text", text}};
  };
  for (size_t i = 1; i < places.size(); ++i) add_related(places[i], "what it meets");
  add_related(finding["launch"], "the launch");
  const auto is_this = [&](const emulator::Rule& rule) { return finding["rule"] == rule.name; };
  json properties = finding;
  for (const char* const elsewhere : {"rule", "level", "text", "places", "launch", "help"})
    properties.erase(elsewhere);
  return {{"ruleId", finding["rule"]},
          {"ruleIndex", std::ranges::find_if(emulator::kRules, is_this) - std::begin(emulator::kRules)},
          {"level", finding["level"]},
          {"message", {{"text", finding["text"]}}},
          {"locations", json::array({location_of(places[0])})},
          {"relatedLocations", related},
          {"properties", properties}};
}

}  // namespace

void Findings::add(const std::string& lines, const json& run) {
  std::istringstream stream(lines);
  for (std::string line; std::getline(stream, line);) {
    json finding = json::parse(line);
    const auto found =
        std::ranges::find_if(findings_, [&](const json& other) { return are_alike(finding, other); });
    if (found != findings_.end()) {
      (*found)["runs"].push_back(run);
      continue;
    }
    finding["runs"] = json::array({run});
    finding["help"] = kPage + finding["rule"].get<std::string>();
    findings_.push_back(std::move(finding));
  }
}

json Findings::sarif() const {
  json rules = json::array(), results = json::array();
  for (const emulator::Rule& rule : emulator::kRules) rules.push_back(sarif_rule(rule));
  for (const json& finding : findings_) results.push_back(sarif_result(finding));
  const json run{{"tool", {{"driver", {{"name", "FlashSteps"}, {"rules", rules}}}}}, {"results", results}};
  return {{"$schema", "https://json.schemastore.org/sarif-2.1.0.json"},
          {"version", "2.1.0"},
          {"runs", json::array({run})}};
}

bool Findings::is_known_format(const std::string& path) {
  return path.ends_with(".json") || path.ends_with(".sarif");
}

std::string Findings::text_for(const std::string& path) const {
  return (path.ends_with(".sarif") ? sarif() : json{{"findings", findings_}}).dump(2) + "\n";
}

}  // namespace flashsteps
