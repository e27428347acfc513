// Calls of a program's functions from another process. All numbers on the socket are of 64 bits, and a text
// is its length and its bytes. harness/python/flashsteps/_emulate.py is the other end.
#include "common/emulator/kernel_server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <deque>
#include <exception>
#include <iostream>
#include <mutex>
#include <string_view>

#include "common/emulator/findings.h"

namespace emulator::program {
namespace {

int the_socket = -1;

void receive(void* to, size_t bytes) {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = recv(the_socket, at, bytes, 0);
    if (got == -1 && errno == EINTR) continue;
    if (got <= 0) _exit(0);  // nobody calls any more
    at += got;
    bytes -= size_t(got);
  }
}
uint64_t receive_number() {
  uint64_t number;
  receive(&number, sizeof(number));
  return number;
}

void send(const void* from, size_t bytes) {
  const auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t sent = ::send(the_socket, at, bytes, MSG_NOSIGNAL);
    if (sent == -1 && errno == EINTR) continue;
    if (sent <= 0) _exit(0);
    at += sent;
    bytes -= size_t(sent);
  }
}
void send_number(uint64_t number) { send(&number, sizeof(number)); }
void send_text(std::string_view text) {
  send_number(text.size());
  send(text.data(), text.size());
}

// Memory that arguments point to, for the time of a call.
struct Memory {
  explicit Memory(size_t size) : bytes(size), data(allocate(size)) {}
  ~Memory() { release(data); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  size_t bytes;
  void* data;
};

// What a call has found. It outlives the call, which may end in exit() or throw.
struct Finding {
  std::string launch;  // "kernel launched at ...: ", or "" for a kernel that was called by its name
  Report report;
};
std::vector<Finding> found;
std::mutex found_mutex;
bool is_in_call = false;

void keep_finding(Location launch, const Report& report) {
  if (report.is_advice) return print_finding(launch, report);
  const std::lock_guard lock(found_mutex);
  const auto is_this = [&](const Finding& other) { return report.is_like(other.report); };
  if (found.size() >= kMostReports || std::ranges::any_of(found, is_this)) return;
  const std::string place =
      *launch.file != '\0' ? "kernel launched at " + emulator::describe(launch) + ": " : "";
  found.push_back({place, report});
}

// `error`: why the call came to no end; "" when it did.
void send_outcome(std::string_view error) {
  std::cout.flush();
  std::fflush(nullptr);
  send_text(error);
  send_number(found.size());
  for (const auto& [launch, report] : found)
    send_text(launch + report.what() + " [" + report.rule->name + "]");
}

std::vector<Function> functions;
std::vector<const char*> unclear;

std::string_view type_in(std::string_view function) {
  constexpr std::string_view kBegin = "[with T = ";
  function.remove_prefix(function.find(kBegin) + kBegin.size());
  return function.substr(0, function.size() - 1);
}

void describe_functions() {
  send_number(functions.size());
  for (const Function& function : functions) {
    send_text(function.name);
    send_number(function.num_parameters);
    for (size_t i = 0; i < function.num_parameters; ++i) {
      const Parameter& its = function.parameters[i];
      send_text(type_in(its.function));
      send_text(its.dtype + (its.bits > 0 ? std::to_string(its.bits) : ""));
      for (const size_t number : {size_t(its.bytes), size_t(its.is_pointer), size_t(its.is_const)})
        send_number(number);
    }
  }
  send_number(unclear.size());
  for (const char* const name : unclear) send_text(name);
}

void answer() {
  const Function& function = functions.at(receive_number());
  const uint64_t mode = receive_number();
  choose_order(AsyncMode(mode), receive_number());
  Configuration configuration;
  const bool is_launch = receive_number() != 0;
  for (cuda::dim3* const size : {&configuration.grid, &configuration.block}) {
    for (unsigned* const extent : {&size->x, &size->y, &size->z}) *extent = unsigned(receive_number());
  }
  configuration.smem_bytes = receive_number();

  found = {};
  is_in_call = true;
  std::deque<Memory> memories;
  std::vector<bool> returns;
  for (uint64_t left = receive_number(); left > 0; --left) {
    const size_t bytes = receive_number();
    returns.push_back(receive_number() != 0);
    receive(memories.emplace_back(bytes).data, bytes);
  }
  // Each is the number of a memory, or bytes.
  std::deque<std::vector<unsigned char>> values;
  std::vector<Argument> arguments;
  for (size_t i = 0; i < function.num_parameters; ++i) {
    const bool is_memory = receive_number() != 0;
    const uint64_t number = receive_number();
    std::vector<unsigned char>& value = values.emplace_back(is_memory ? sizeof(void*) : number);
    if (is_memory) {
      std::memcpy(value.data(), &memories.at(number).data, sizeof(void*));
    } else {
      receive(value.data(), number);
    }
    arguments.push_back(value.data());
  }
  function.call(function.function, is_launch ? &configuration : nullptr, arguments.data());
  cuda::cudaDeviceSynchronize();
  cuda::cudaGetLastError();  // the next call begins without an error of this one
  send_outcome("");
  for (size_t i = 0; i < memories.size() && found.empty(); ++i)
    if (returns[i]) send(memories[i].data, memories[i].bytes);
  is_in_call = false;
}

}  // namespace

void add(const Function& function) { functions.push_back(function); }
void add_unclear(const char* name) { unclear.push_back(name); }

void serve(int argc, char** argv) {
  const std::string_view number = argv[argc - 1];
  std::from_chars(number.data(), number.data() + number.size(), the_socket);
  std::signal(SIGINT, SIG_IGN);  // of a terminal, which it sends to Python, too: Python ends this process
  receive_findings(keep_finding);
  // Many programs check for errors with exit(1).
  std::atexit([] {
    if (is_in_call) send_outcome("the program called exit()");
  });
  describe_functions();
  try {
    for (;;) answer();
  } catch (const std::exception& error) {
    if (is_in_call) send_outcome(error.what());
    _exit(1);
  }
}

}  // namespace emulator::program
