# Compiler settings, the packages we stand on, and the two functions every folder uses.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(absl REQUIRED)
find_package(Protobuf REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(spdlog CONFIG REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED)
find_package(SQLite3 REQUIRED)
find_package(nlohmann_json REQUIRED)
pkg_check_modules(HTTPLIB REQUIRED IMPORTED_TARGET cpp-httplib)
pkg_check_modules(ISAL REQUIRED IMPORTED_TARGET libisal)
pkg_check_modules(IBVERBS REQUIRED IMPORTED_TARGET libibverbs)
pkg_check_modules(HWLOC REQUIRED IMPORTED_TARGET hwloc)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(YAMLCPP REQUIRED IMPORTED_TARGET yaml-cpp)

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

# -ffp-contract=off: a sum is rounded after every operation on every machine, with or without FMA.
add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Werror;-ffp-contract=off>")
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-Wthread-safety>")
endif()
if(ADDEND_SANITIZE)
  # Of debug information a report needs names and lines alone; all of it takes a third of the compiler's time.
  add_compile_options(-fsanitize=${ADDEND_SANITIZE} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${ADDEND_SANITIZE})
  # Abseil's headers read flags through a fence, which g++ says ThreadSanitizer does not model.
  if(ADDEND_SANITIZE MATCHES thread AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    add_compile_options(-Wno-tsan)
  endif()
endif()
if(ADDEND_FUZZ)
  # What is undefined ends the process, as everything else that a fuzzer finds. What makes compiling take twice as long, and is
  # looked for by AddressSanitizer or in the unit tests of the sanitizer builds, is left out.
  add_compile_options(-fsanitize=fuzzer-no-link -fno-sanitize-recover=all
                      -fno-sanitize=alignment,builtin,function,null,nonnull-attribute,object-size,pointer-overflow,return,returns-nonnull-attribute,vptr)
endif()
# Only the sources that mention the fault are compiled with it, so that another fault costs seconds to build.
function(addend_plant_fault)
  if(ADDEND_PLANTED_FAULT)
    string(TOUPPER ADDEND_FAULT_${ADDEND_PLANTED_FAULT} fault)
    foreach(source ${ARGN})
      if(IS_ABSOLUTE ${source})  # made by the build, and not there yet
        continue()
      endif()
      file(STRINGS ${source} lines REGEX ADDEND_FAULT_)
      if(lines)
        set_source_files_properties(${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
      endif()
      if(lines MATCHES ${fault})
        set_source_files_properties(${source} PROPERTIES COMPILE_DEFINITIONS ${fault}=1)
      endif()
    endforeach()
  endif()
endfunction()
include_directories(${CMAKE_SOURCE_DIR})

# addend_library(name SOURCES ... DEPS ...): one static library per folder.
function(addend_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  addend_plant_fault(${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC ${ARG_DEPS})
endfunction()

# addend_test(name SOURCES ... DEPS ...): one GoogleTest program, known to CTest by its name.
function(addend_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  # Of a test the compiler's time counts, not the test's own.
  target_compile_options(${name} PRIVATE -O0)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 120)
endfunction()
