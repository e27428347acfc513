// Jobs in a process of their own, so that a step that crashes or hangs takes nothing else with it.
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include "harness/base/heartbeat.h"
#include "harness/run/jobs.h"

namespace flashsteps {
namespace {

constexpr int kEventFd = 3;
constexpr int kTickMs = 250;  // between two looks at a worker that is silent

[[noreturn]] void throw_errno(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

// All of it, or false and errno.
bool write_fully(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = write(fd, &text[done], text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += size_t(n);
  }
  return true;
}

struct Pipe {
  int read_end = -1, write_end = -1;
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw_errno("pipe");
    read_end = ends[0];
    write_end = ends[1];
  }
  ~Pipe() {
    close_end(read_end);
    close_end(write_end);
  }
  static void close_end(int& end) {
    if (end >= 0) close(std::exchange(end, -1));
  }
};

// fork and exec, from a program that never touches CUDA itself.
pid_t start_worker(const Pipe& request, const Pipe& events) {
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) throw_errno("fork");
  if (pid > 0) return pid;
  // Between fork and exec: system calls only.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // the parent died before the line above
  // No pipe has a number below 3: the program keeps the standard ones open (see flashsteps_main). That of
  // events was made second, so that its end is not kEventFd.
  dup2(request.read_end, STDIN_FILENO);
  dup2(events.write_end, kEventFd);
  execl("/proc/self/exe", "flashsteps", kWorkerFlag, static_cast<char*>(nullptr));
  _exit(127);
}

// How much of its time a silent worker has used up. A clock on the wall cannot tell: a worker may get no core
// on a busy machine, or be stopped by Ctrl-Z, a debugger or a laptop's lid. What counts is the time that one
// of its threads has computed, or all of them on all cores, since of many that spin each gets only a part of
// a core; and the time that all of them have slept, as in a driver that waits for a GPU.
class Silence {
 public:
  explicit Silence(pid_t worker) : tasks_("/proc/" + std::to_string(worker) + "/task") {}

  void end() { before_.reset(); }

  // To be called every kTickMs. Seconds since the first call after end().
  double seconds() {
    const Threads now = look();
    if (!before_) {
      before_ = now;
      asleep_ms_ = 0;
      return 0;
    }
    if (now.all_sleep) asleep_ms_ += kTickMs;
    long computed = 0, by_all = 0;
    for (const auto& [id, ticks] : now.cpu_ticks) {
      const long its = ticks - before_->cpu_ticks[id];  // of a new thread: 0
      computed = std::max(computed, its);
      by_all += its;
    }
    computed = std::max(computed, by_all / std::max(long(std::thread::hardware_concurrency()), 1L));
    return asleep_ms_ / 1000.0 + double(computed) / double(sysconf(_SC_CLK_TCK));
  }

 private:
  struct Threads {
    std::map<std::string, long> cpu_ticks;
    bool all_sleep = true;
  };

  Threads look() const {
    Threads threads;
    std::error_code gone;
    for (const auto& task : std::filesystem::directory_iterator(tasks_, gone)) {
      std::ifstream in(task.path() / "stat");
      std::string line;
      if (!std::getline(in, line)) continue;
      // proc(5): the name, in parentheses, may hold anything. Then come the state, ten numbers, user and
      // system time.
      std::istringstream fields(line.substr(line.rfind(')') + 1));
      char state = 0;
      std::string skipped;
      long user = 0, system = 0;
      fields >> state;
      for (int i = 0; i < 10; ++i) fields >> skipped;
      fields >> user >> system;
      threads.cpu_ticks[task.path().filename()] = user + system;
      threads.all_sleep = threads.all_sleep && state == 'S';
    }
    return threads;
  }

  std::filesystem::path tasks_;
  std::optional<Threads> before_;
  long asleep_ms_ = 0;
};

}  // namespace

JobOutcome run_job_isolated(const json& request, double timeout_seconds, const EmitEvent& on_event) {
  Pipe request_pipe, event_pipe;
  const pid_t pid = start_worker(request_pipe, event_pipe);
  Pipe::close_end(request_pipe.read_end);
  Pipe::close_end(event_pipe.write_end);
  // A worker that dies at once must not kill us with SIGPIPE.
  const auto before = std::signal(SIGPIPE, SIG_IGN);
  write_fully(request_pipe.write_end, request.dump());
  std::signal(SIGPIPE, before);
  Pipe::close_end(request_pipe.write_end);

  struct Reap {
    pid_t pid;
    int status = 0;
    void wait() {
      while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
      }
      pid = 0;
    }
    ~Reap() {
      if (pid == 0) return;
      kill(pid, SIGKILL);
      wait();
    }
  } worker{pid};

  std::string buffer;
  bool finished = false;
  Silence silence(pid);
  while (true) {
    pollfd waiting{event_pipe.read_end, POLLIN, 0};
    const int ready = poll(&waiting, 1, kTickMs);
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) {
      // Looked at before the pipe is once more: a sign of life may have come in while this process had no
      // core.
      if (silence.seconds() < timeout_seconds || poll(&waiting, 1, 0) != 0) continue;
      return {Status::kTimeout,
              "no sign of life in " + std::to_string(int(timeout_seconds)) +
                  " s of its own running time, so it was killed (if the step is only slow, raise --timeout)"};
    }
    char chunk[4096];
    const ssize_t n = read(event_pipe.read_end, chunk, sizeof chunk);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    buffer.append(chunk, size_t(n));
    for (size_t end; (end = buffer.find('\n')) != std::string::npos; buffer.erase(0, end + 1)) {
      const json event = json::parse(buffer.substr(0, end));
      if (event.at("event") == "failed") return {event.at("status"), event.at("message")};
      if (event.at("event") == "finished")
        finished = true;
      else if (event.at("event") != "alive")
        on_event(event);
    }
    silence.end();
  }
  worker.wait();
  if (WIFSIGNALED(worker.status)) {
    const int signal = WTERMSIG(worker.status);
    return {Status::kCrash,
            "its process was killed by signal " + std::to_string(signal) + " (" + strsignal(signal) + ")"};
  }
  if (const int code = WEXITSTATUS(worker.status); code != 0 || !finished)
    return {Status::kCrash, "its process ended with exit status " + std::to_string(code) +
                                (code == 0 ? " before its work was done: does the step call exit()?" : "")};
  return {};
}

int worker_main() {
  std::mutex mutex;  // heartbeats come from any thread
  const auto emit = [&mutex](const json& event) {
    const std::lock_guard lock(mutex);
    // A message of the device's may hold any bytes; they must not end the worker.
    const std::string line = event.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
    if (!write_fully(kEventFd, line)) _exit(127);
  };
  on_heartbeat = [&] { emit({{"event", "alive"}}); };
  // What is no request at all fails like any other that cannot be done.
  const json request = json::parse(std::cin, nullptr, /*allow_exceptions=*/false);
  const JobOutcome outcome = run_job(request, emit);
  if (outcome.done()) {
    emit({{"event", "finished"}});
  } else {
    emit({{"event", "failed"}, {"status", outcome.status}, {"message", outcome.message}});
  }
  return 0;
}

}  // namespace flashsteps
