// main() of every test program with Catch2 2.x, where it comes from a header. Catch2 3.x brings it as a
// library.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
