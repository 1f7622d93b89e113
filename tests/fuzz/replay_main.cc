// Runs a fuzz target without libFuzzer: takes each file of the arguments once, and all files of
// folders. Findings in the corpus stay fixed in every build.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int main(int argc, char** argv) {
  LLVMFuzzerInitialize(&argc, &argv);
  std::vector<std::filesystem::path> files;
  for (int i = 1; i < argc; ++i) {
    if (!std::filesystem::is_directory(argv[i])) {
      files.emplace_back(argv[i]);
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  for (const auto& file : files) {
    std::ifstream stream(file, std::ios::binary);
    const std::string input{std::istreambuf_iterator<char>(stream), {}};
    if (!stream) return std::fprintf(stderr, "%s cannot be read\n", file.c_str()), 66;
    // The last printed name is that of the crashing file.
    std::fprintf(stderr, "%s\n", file.c_str());
    if (LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size()) != 0) {
      return std::fprintf(stderr, "it is not an input of this target any more\n"), 65;
    }
  }
  std::fprintf(stderr, "%zu inputs\n", files.size());
  return files.empty() ? 66 : 0;
}
