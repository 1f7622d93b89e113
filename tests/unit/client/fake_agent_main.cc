// addend-fake-agent SOCKET SIZE: the fake agent as a process, for the tests in tests/python. Takes
// one command per line: "fail CODE TEXT", "refuse CODE TEXT", "progress TEXT", "hold", "release",
// "close", "counts". Each is answered by one line of JSON, the counts, when it has taken effect.
// Ends with its standard input.
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>

#include "tests/unit/client/fake_agent.h"

namespace {

void PrintCounts(const addend::FakeAgent::Counts& counts) {
  std::cout << "{\"connected\":" << counts.connected << ",\"shut_down\":" << counts.shut_down
            << ",\"died\":" << counts.died << ",\"tensors\":" << counts.tensors
            << ",\"priorities\":[";
  for (size_t i = 0; i < counts.priorities.size(); ++i) {
    std::cout << (i == 0 ? "" : ",") << counts.priorities[i];
  }
  std::cout << "]}" << std::endl;
}

void Obey(addend::FakeAgent* agent, const std::string& line) {
  std::istringstream words(line);
  std::string command;
  words >> command;
  uint32_t code = 0;
  if (command == "fail" || command == "refuse") words >> code;
  std::string text;
  std::getline(words >> std::ws, text);
  if (command == "fail") agent->Fail(code, text);
  if (command == "refuse") agent->RefuseInit(code, text);
  if (command == "progress") agent->SendProgress(text);
  if (command == "hold") agent->HoldResults(true);
  if (command == "release") agent->HoldResults(false);
  if (command == "close") agent->CloseAll();
  PrintCounts(agent->counts());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: addend-fake-agent SOCKET SIZE\n";
    return 64;
  }
  addend::FakeAgent agent(argv[1], std::atoi(argv[2]));
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line);) Obey(&agent, line);
  return 0;
}
