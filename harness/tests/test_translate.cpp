// What `flashsteps emulate` makes of CUDA C++ for g++.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "harness/emulate/translate.h"
#include "harness/tests/support.h"

using flashsteps::translate;

namespace {

bool is_own(std::string_view path) { return path == "a.cu" || path == "its.h"; }

const std::string kMarker = "# 1 \"a.cu\"\n";

// Columns do not matter: without what spaces C++ does not need.
std::string tidied(const std::string& text) {
  std::string result;
  for (const char c : text) {
    const bool follows_space = !result.empty() && result.back() == ' ';
    if (follows_space && std::string(" \n,;(){}").find(c) != std::string::npos) result.pop_back();
    if (c != ' ' || (!result.empty() && std::string("\n,;(){}").find(result.back()) == std::string::npos))
      result += c;
  }
  return result;
}

// Of a file of the user's that has this text.
std::string translated(const std::string& text) {
  const std::string result = translate(kMarker + text, is_own);
  REQUIRE(std::ranges::count(result, '\n') == 1 + std::ranges::count(text, '\n'));
  REQUIRE(result.starts_with(kMarker));
  return result.substr(kMarker.size());
}

std::string refusal_of(const std::string& text) {
  try {
    translate(kMarker + text, is_own);
  } catch (const flashsteps::TranslationError& error) {
    return error.what();
  }
  return "";
}

// What a launch in line 1 becomes, without a stream and shared memory.
std::string launched(const std::string& grid, const std::string& block, const std::string& kernel,
                     const std::string& arguments = "", const std::string& rest = ", 0, nullptr") {
  return "::emulator::program::launch({\"a.cu\", 1}, dim3" + grid + ", dim3" + block + rest +
         ", [=](auto... flashsteps_args) { " + kernel + "(flashsteps_args...); }" + arguments + ")";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }
bool is_unchanged(const std::string& text) { return translated(text) == text; }

}  // namespace

TEST_CASE("translate: a launch becomes a call") {
  CHECK(tidied(translated("f<<<1, 32>>>();")) == tidied(launched("(1)", "(32)", "f") + ";"));
  CHECK(tidied(translated("f<<<g, b>>>(x, y + 1);")) ==
        tidied(launched("(g)", "( b)", "f", ", x, y + 1") + ";"));
  CHECK(tidied(translated("f<T, 4><<<g,b,bytes>>>(x);")) ==
        tidied(launched("(g)", "(b)", "f<T, 4>", ", x", ",bytes, nullptr") + ";"));
  CHECK(tidied(translated("f<<<g,b,bytes, stream>>>(x);")) ==
        tidied(launched("(g)", "(b)", "f", ", x", ",bytes, stream") + ";"));
}

TEST_CASE("translate: grid and block may be braces, and any expression") {
  CHECK(tidied(translated("f<<<{2,2},{32}>>>();")) == tidied(launched("{2,2}", "{32}", "f") + ";"));
  CHECK(tidied(translated("f<<<{2,2},64>>>();")) == tidied(launched("{2,2}", "(64)", "f") + ";"));
  CHECK(tidied(translated("f<<<dim3(a, b),S<1, 2>::n>>>();")) ==
        tidied(launched("(dim3(a, b))", "(S<1, 2>::n)", "f") + ";"));
  CHECK(tidied(translated("f<<<cdiv<int, 2>(n),t[i, j]>>>();")) ==
        tidied(launched("(cdiv<int, 2>(n))", "(t[i, j])", "f") + ";"));
  CHECK(tidied(translated("f<<<n >> 1,1 << k>>>();")) == tidied(launched("(n >> 1)", "(1 << k)", "f") + ";"));
  CHECK(tidied(translated("f<<<n << 1,p->n>>>();")) == tidied(launched("(n << 1)", "(p->n)", "f") + ";"));
  CHECK(tidied(translated("f<<<v<A<int>>,(a >> (b > 3))>>>();")) ==
        tidied(launched("(v<A<int>>)", "((a >> (b > 3)))", "f") + ";"));
  CHECK(tidied(translated("f<<<g,size<A<int>>>>>();")) ==
        tidied(launched("(g)", "(size<A<int>>)", "f") + ";"));
  CHECK(tidied(translated("f<<<n < 64 ? 1 : 2,64>>>();")) ==
        tidied(launched("(n < 64 ? 1 : 2)", "(64)", "f") + ";"));
  CHECK(tidied(translated("f<<<n > 64 ? 1 : 2,n >= 3>>>();")) ==
        tidied(launched("(n > 64 ? 1 : 2)", "(n >= 3)", "f") + ";"));
}

TEST_CASE("translate: what is launched") {
  for (const char* text :
       {"ns::f", "::f", "ns::S<int>::f", "f<int, (N > 3)>", "f<A<B<int>>>", "f<(1 << 3), ','>", "f<1 << 3>",
        "T::template f<8>", "f<sizeof(T) >= 4, (p->n)>", "f<S{1, 2}>"}) {
    const std::string kernel = text;
    CHECK(tidied(translated(kernel + "<<<1,2>>>(x);")) ==
          tidied(launched("(1)", "(2)", kernel, ", x") + ";"));
    CHECK(tidied(translated(kernel + " <<<1,2>>> (x);")) ==
          tidied(launched("(1)", "(2)", kernel, ", x") + ";"));
  }
  for (const char* text :
       {"(*pointer)", "table[i]", "kernels[i][j + 1]", "object.kernel", "object->kernels[0]", "ns::pick(3)",
        "pick<4>(n)", "(c ? f : g)", "this->kernel", "table[0].f"}) {
    const std::string kernel = text;
    CHECK(
        tidied(translated(kernel + "<<<1,2>>>(x);")) ==
        tidied(
            "::emulator::program::launch({\"a.cu\", 1}, dim3(1), dim3(2), 0, nullptr, [flashsteps_kernel = " +
            kernel + "](auto... flashsteps_args) { flashsteps_kernel(flashsteps_args...); }, x);"));
  }
}

TEST_CASE("translate: what stands around a launch") {
  const std::string call = launched("(1)", "(2)", "f<3>", ", x");
  for (const char* text : {"if (x) ", "else ", "return ", "do ", "return ::g(), ", "a < b; ", "case 3: ",
                           "{ ", "for (int i = 0; i < 3; ++i) ", "CHECK((", "x = a > b, ", "[&] { "}) {
    const std::string before = text;
    CHECK(tidied(translated(before + "f<3><<<1,2>>>(x);")) == tidied(before + call + ";"));
  }
  CHECK(tidied(translated("if (x) (*p)<<<1,2>>>();")) ==
        tidied("if (x) ::emulator::program::launch({\"a.cu\", 1}, dim3(1), dim3(2), 0, nullptr, "
               "[flashsteps_kernel = (*p)]"
               "(auto... flashsteps_args) { flashsteps_kernel(flashsteps_args...); });"));
  CHECK(tidied(translated("return ::f<<<1,2>>>();")) ==
        tidied("return " + launched("(1)", "(2)", "::f") + ";"));
  CHECK(tidied(translated("f<3><<<1,2>>>(x); f<3><<<1,2>>>(x);")) == tidied(call + "; " + call + ";"));
}

TEST_CASE("translate: brackets of a launch with spaces in them") {
  CHECK(tidied(translated("f << <1,2 >> >(x);")) == tidied(launched("(1)", "(2)", "f", ", x") + ";"));
}

TEST_CASE("translate: NULL is a pointer to a kernel") {
  CHECK(tidied(translated("f<<<1,2>>>(__null, x == __null, g(__null), __null);")) ==
        tidied(launched("(1)", "(2)", "f", ", nullptr, x == __null, g(__null), nullptr") + ";"));
}

TEST_CASE("translate: a launch over several lines and markers") {
  CHECK(tidied(translated("f<int,\n"
                          "  3>\n"
                          "<<<grid,\n"
                          "   block, 0,\n"
                          "# 4 \"a.cu\" 3 4\n"
                          "   __null\n"
                          "# 4 \"a.cu\"\n"
                          "   >>>(a,\n"
                          "b);\n"
                          "g<<<1,2>>>();\n")) ==
        tidied("::emulator::program::launch({\"a.cu\", 1}, \n"
               "  \n"
               "dim3(grid), dim3(\n"
               "   block), 0,\n"
               "# 4 \"a.cu\" 3 4\n"
               "   __null\n"
               "# 4 \"a.cu\"\n"
               "   , [=](auto... flashsteps_args) { f<int, 3>(flashsteps_args...); }, a,\n"
               "b);\n"
               "::emulator::program::launch({\"a.cu\", 6}, dim3(1), dim3(2), 0, nullptr, "
               "[=](auto... flashsteps_args) { g(flashsteps_args...); });\n"));
}

TEST_CASE("translate: a launch's place is the one that the last marker says") {
  const std::string text = translate(
      "# 1 \"a.cu\"\n\n# 70 \"a.cu\" 2\n\nint R = sizeof(R\"x(\n)\"\n)x\");\nf<<<1,2>>>();", is_own);
  CHECK(contains(text, "{\"a.cu\", 74}"));
}

// What a declaration of `names` in a function becomes whose marker is token `number`.
std::string static_variables(int number, const std::string& members, const std::vector<std::string>& names) {
  const std::string type = "flashsteps_shared_" + std::to_string(number);
  std::string text = "struct " + type + " { " + members + "; };";
  for (const std::string& name : names) {
    const std::string its = type + "_" + name;
    text += " struct " + its + " { static constexpr const char* name() { return \"" + name +
            "\"; } }; [[maybe_unused]] auto& " + name + " = ::emulator::program::shared<" + its + ", " +
            std::to_string(number++) + ", decltype(" + type + "::" + name + "), __alignof__(((" + type +
            "*)nullptr)->" + name + ")>();";
  }
  return text;
}

TEST_CASE("translate: static shared memory in a function") {
  const auto becomes = [](const std::string& declaration, const std::string& result) {
    CHECK(tidied(translated("{ " + declaration + " }")) == tidied("{ " + result + " }"));
  };
  becomes("__flashsteps_shared__ float a[4], *b, c[2][3];",
          static_variables(1, "float a[4], *b, c[2][3]", {"a", "b", "c"}));
  becomes("volatile __flashsteps_shared__ T a;", static_variables(2, "volatile T a", {"a"}));
  becomes("static __flashsteps_shared__ int a;", static_variables(2, "int a", {"a"}));
  becomes("__flashsteps_shared__ alignas(16) alignas(T) char a[4];",
          static_variables(1, "alignas(16) alignas(T) char a[4]", {"a"}));
  becomes("__flashsteps_shared__ __attribute__((aligned(16))) char a[4];",
          static_variables(1, "__attribute__((aligned(16))) char a[4]", {"a"}));
  becomes("__flashsteps_shared__ a::B<C<int, 4>, d> a[N == 3], b;",
          static_variables(1, "a::B<C<int, 4>, d> a[N == 3], b", {"a", "b"}));
  becomes("__flashsteps_shared__ struct { int x, y[2]; } a __attribute__((aligned(8)));",
          static_variables(1, "struct { int x, y[2]; } a __attribute__((aligned(8)))", {"a"}));
  CHECK(refusal_of("void f() { __flashsteps_shared__ float (*a)[4]; }") ==
        "a.cu:1: the emulator knows no __shared__ pointers to arrays or functions, declare a type for them");
}

TEST_CASE("translate: lambdas have a static shared variable without capturing it") {
  const auto capture_of = [](const std::string& lambda) {
    const std::string text = translated("{ __flashsteps_shared__ int a; " + lambda + " }");
    return text.substr(text.rfind(">();") + 5);
  };
  CHECK(capture_of("f = [](int i) { a = i; };") == "f = [&a](int i) { a = i; }; }");
  CHECK(capture_of("f = [=] { return x[a]; };") == "f = [=, &a] { return x[a]; }; }");
  for (const char* lambda : {"f = [&](int i) { a = i; };", "f = [=] { b; };", "b[1] = { a };"})
    CHECK(capture_of(lambda) == std::string(lambda) + " }");
}

TEST_CASE("translate: static shared memory outside of functions") {
  const std::string is = "static constinit thread_local";
  CHECK(tidied(translated("__flashsteps_shared__ float a[4], b[4];")) == tidied(is + " float a[4], b[4];"));
  CHECK(tidied(translated("static __flashsteps_shared__ int a;")) == tidied(" " + is + " int a;"));
  CHECK(tidied(translated("alignas(16) __flashsteps_shared__ char a[4];")) ==
        tidied("alignas(16)  " + is + " char a[4];"));
  CHECK(tidied(translated("[[maybe_unused]] __flashsteps_shared__\nchar a[4];")) ==
        tidied("[[maybe_unused]] " + is + "\nchar a[4];"));
}

TEST_CASE("translate: a launch by cudaLaunchKernel takes the kernel without a cast") {
  const std::string known = "int cudaLaunchKernel(); int cudaLaunchCooperativeKernel(); ";
  CHECK(tidied(translated(known + "check(cudaLaunchKernel((void *)f<int>, 1, 32, a));")) ==
        tidied(known + "check(cudaLaunchKernel(f<int>, 1, 32, a));"));
  CHECK(tidied(translated(known + "cudaLaunchCooperativeKernel((const void*)f, 1, 32, a);")) ==
        tidied(known + "cudaLaunchCooperativeKernel(f, 1, 32, a);"));
  CHECK(is_unchanged(known + "cudaLaunchKernel((f), 1, 32, a);"));
}

TEST_CASE("translate: the cluster of a kernel") {
  CHECK(tidied(translated("void __flashsteps_cluster_dims__(2, N, 1) f(int x = g({1})) { h(); }")) ==
        tidied("void f(int x = g({1})) { ::emulator::program::cluster_dims<2 , N , 1 >(); h(); }"));
  CHECK(tidied(translated("void __flashsteps_cluster_dims__(2) f(); void g() {}")) ==
        tidied("void f(); void g() {}"));
}

TEST_CASE("translate: dynamic shared memory in a function is a pointer") {
  const auto pointer = [](const std::string& to) {
    return " " + to + "* const a = reinterpret_cast<" + to +
           "*>(::emulator::program::dynamic<flashsteps_dynamic_";
  };
  for (const auto& [declaration, type] : std::vector<std::pair<std::string, std::string>>{
           {"extern __flashsteps_shared__ float a[]", "float"},
           {"extern volatile __flashsteps_shared__ float a[ ]", "volatile float"},
           {"__flashsteps_shared__ extern unsigned char a[]", "unsigned char"},
           {"float extern __flashsteps_shared__ volatile a[]", "float volatile"},
           {"extern __flashsteps_shared__ std::array<float, 4> a[]", "std::array<float, 4>"},
           {"extern __flashsteps_shared__ alignas(1024) T a[]", "T"},
           {"alignas(1024) extern __flashsteps_shared__ T a[]", "T"},
           {"extern __attribute__((aligned(16))) __flashsteps_shared__ T a[]", "T"},
           {"__attribute__((aligned(16))) extern __flashsteps_shared__ T a[]", "T"},
           {"extern __flashsteps_shared__ T __attribute__((aligned(16))) a[]", "T"},
           {"extern __flashsteps_shared__ T a[] __attribute__((aligned(16)))", "T"},
           {"[[maybe_unused]] extern __flashsteps_shared__ T a[]", "T"}}) {
    const std::string result = translated("void f() { g(); " + declaration + "; }");
    CHECK(result.substr(0, 16) == "void f() { g(); ");
    const std::string replaced = result.substr(16);
    CHECK(replaced.starts_with("struct flashsteps_dynamic_"));
    CHECK(contains(replaced, pointer(type)));
    CHECK(contains(replaced, "a [1"));
    CHECK(contains(replaced, "alignas") == contains(declaration, "alignas"));
    CHECK(contains(replaced, "aligned") == contains(declaration, "aligned"));
    CHECK(replaced.ends_with("; }"));
  }
  CHECK(contains(translated("void f() { extern __flashsteps_shared__ float a[][33]; }"),
                 "float (* const a)[33] = reinterpret_cast<float (*)[33]>("));
  const std::string lines =
      translated("void f() {\n#pragma unroll 1\nextern\n__flashsteps_shared__ T a[];\n}\n");
  CHECK(lines.starts_with("void f() {\n#pragma unroll 1\nstruct "));
  CHECK(lines.ends_with(">())\n  ;\n}\n"));
}

TEST_CASE("translate: dynamic shared memory outside of functions is a pointer, too") {
  for (const char* before :
       {"", "namespace { ", "namespace a::b { void f() {} ", "inline namespace a { namespace b { ",
        "extern \"C\" { ", "template <int N> void f() { } struct S { int n; }; "})
    CHECK(translated(std::string(before) + "extern __flashsteps_shared__ float4 a[];")
              .starts_with(
                  std::string(before) +
                  "extern constinit thread_local float4* const a __asm__(\"_ZN8emulator4cuda4smemE\")"));
  for (const char* before :
       {"namespace { void f() { ", "struct S { void f() const { ", "auto f = [] { if (x) { "})
    CHECK(translated(std::string(before) + "extern __flashsteps_shared__ float4 a[];")
              .starts_with(std::string(before) + "struct flashsteps_dynamic_"));
}

TEST_CASE("translate: __noinline__ becomes an attribute") {
  CHECK(tidied(translated("__noinline__ void f();")) == tidied("__attribute__((noinline)) void f();"));
  CHECK(is_unchanged("__attribute__((__noinline__)) void f();"));
  CHECK(is_unchanged("__attribute__((unused, __noinline__)) void f();"));
}

TEST_CASE("translate: C++ is not touched") {
  CHECK(is_unchanged(
      "a << b; a <<= 1; std::cout << f<3> << g<h<int>>(x) >> y; v<w<x<int>>> z; v<w<x<int>>>(z);"));
  CHECK(is_unchanged("auto& operator<< <T>(S); friend O& operator<<<T>(O&, S); x = a.operator<<<int>(b);"));
  CHECK(is_unchanged(
      "const char* s = \"f<<<1, 2>>>(); \\\" asm(\" R\"(f<<<1,\n)\" \")\" \"__noinline__\"; char c = '\"';"));
  CHECK(
      is_unchanged("int n = 1'000'000; f<1'0>(n, u8'\\'', L\"asm\", 0x1p-3, 1.5e+3f, LR\"--(asm(\")--\");"));
  CHECK(is_unchanged("// f<<<1, 2>>>() isn't\n/* asm(\"x\") isn't\n __noinline__ */ int x; // \"\n"));
  CHECK(is_unchanged("#pragma unroll f<<<1\n  #pragma asm(\"x\")\nint x;"));
  CHECK(is_unchanged("int my_asm, asm_(int), __noinline__s;"));
  CHECK(is_unchanged("asm volatile(\"\" ::: \"memory\");"));
  CHECK(is_unchanged("f(]}; ) { \"unfinished"));  // for the compiler to say
}

TEST_CASE("translate: other files are not touched") {
  const std::string text =
      "int asm_outside; asm(\"x\"); f<<<1, 2>>>();\n"
      "# 1 \"/usr/include/x.h\" 1 3 4\n"
      "__noinline__ asm(\"x\"); { ( \" \n"
      "# 2 \"a.cu\" 2\n"
      "int x;\n"
      "# 1 \"/usr/include/a.cu\"\n"
      "f<<<1>>>(); R\"(\n# 3 \"a.cu\"\nasm(\"x\"); )\" asm(\"y\");\n";
  CHECK(translate(text, is_own) == text);
  CHECK(translate("", is_own).empty());
}

TEST_CASE("translate: a user's header is the user's") {
  const std::string text = translate("# 1 \"my\\\\dir/b.h\" 1\nf<<<1,2>>>();\n# 1 \"c.h\" 1\ng<<<1,2>>>();\n",
                                     [](std::string_view path) { return path == "my\\\\dir/b.h"; });
  CHECK(contains(text, "{\"my\\\\dir/b.h\", 1}"));
  CHECK(contains(text, "g<<<1,2>>>();"));
}

TEST_CASE("translate: unknown PTX in a header stops who executes it") {
  const std::string text = "void f() { asm(\"vadd 0;\"); }";
  CHECK(refusal_of(text) == "a.cu:1: PTX: the emulator does not know `vadd 0`");
  const std::string in_header = translate("# 1 \"main.cu\"\n" + kMarker + text, is_own);
  CHECK(in_header.find(
            "::emulator::program::stop(R\"ptx(a.cu:1: PTX: the emulator does not know `vadd 0`)ptx\")") !=
        std::string::npos);
}

TEST_CASE("translate: what cannot be translated") {
  const std::string launch =
      "a launch is kernel<<<grid, block, bytes, stream>>>(arguments), where bytes and stream may be missing";
  for (const char* text : {"f<<<1>>>();", "f<<<1, 2>>>;", "f<<<1, 2>>(x);", "f<<<1, 2, 3, 4, 5>>>();",
                           "f<<<(1, 2>>>();", "f<<<", "f<<<1, 2"})
    CHECK(refusal_of(text) == "a.cu:1: " + launch);
  for (const char* text : {"<<<1, 2>>>();", "x = <<<1, 2>>>();", "3<<<1, 2>>>();", "else <<<1, 2>>>();",
                           "> <<<1, 2>>>();", "(a > <<<1, 2>>>();", ")<<<1, 2>>>();", "a::<<<1, 2>>>();"})
    CHECK(refusal_of(text) == "a.cu:1: there is no kernel in front of <<<");
  CHECK(tidied(
            translated("void f() { extern __attribute__((aligned(8))) __flashsteps_shared__ S<1, 2> s; }")) ==
        tidied("void f() { struct flashsteps_dynamic_15 { __attribute__((aligned(8))) S < 1,2 > s; }; S<1, "
               "2>& s = "
               "*reinterpret_cast<S<1, 2>*>(::emulator::program::dynamic<flashsteps_dynamic_15>()) ; }"));
  const std::string dynamic =
      "dynamic shared memory is one array of unknown length: extern __shared__ float name[];";
  for (const char* text :
       {"extern __flashsteps_shared__ float a;", "extern __flashsteps_shared__ float a[3];",
        "extern __flashsteps_shared__ float a[], b[];", "extern __flashsteps_shared__ a[];",
        "extern __flashsteps_shared__ float", "extern __flashsteps_shared__"})
    CHECK(refusal_of(text) == "a.cu:1: " + dynamic);
  CHECK(refusal_of("\n\n__flashsteps_shared__ int a = 3;") ==
        "a.cu:3: a __shared__ variable has no initialiser, let a thread write it in front of a "
        "__syncthreads()");
}

TEST_CASE("translate: inline PTX becomes a statement in its place") {
  const std::string at = "do { constexpr auto flashsteps_at = ::emulator::Location::current(); ";
  const std::string text = translated(
      "if (x) asm volatile (\"mov.u32 %0, %%laneid;\"\n"
      " : \"=r\"(lane[i]) /* a comment */ :: \"memory\");\n"
      "else __asm__(\"add.s32 %0, %1, \" \"%[two];\" : \"=r\"(x)\n: \"r\"(f(x, \n(y))), [two] \"n\"(2));");
  CHECK(
      tidied(text) ==
      tidied(
          "if (x) " + at +
          "auto&& flashsteps_0 = (lane[i]); "
          "{ ::emulator::ptx::mov_u32(flashsteps_at, flashsteps_0, ::emulator::ptx::special_laneid()); } "
          "} while (false)\n /* a comment */ ;\nelse " +
          at +
          "auto&& flashsteps_0 = (x); const auto flashsteps_1 = (f(x, (y))); const auto flashsteps_2 = (2); "
          "{ ::emulator::ptx::add_s32(flashsteps_at, flashsteps_0, flashsteps_1, flashsteps_2); } "
          "} while (false)\n\n;"));
}

TEST_CASE("translate: operands of asm may have colons, and comments tabs") {
  CHECK(tidied(translated(
            "asm(\"mov.u32 %0, %2; //\ta\\tb\\n\" : \"=r\"(x) : \"r\"(a ? 1 : 2), \"n\"(S::N));")) ==
        tidied("do { constexpr auto flashsteps_at = ::emulator::Location::current(); "
               "auto&& flashsteps_0 = (x); const auto flashsteps_1 = (a ? 1 : 2); "
               "const auto flashsteps_2 = (S::N); "
               "{ ::emulator::ptx::mov_u32(flashsteps_at, flashsteps_0, flashsteps_2); } } while (false);"));
}

TEST_CASE("translate: asm without any instruction keeps the compiler from moving accesses") {
  CHECK(is_unchanged("asm volatile(\"\" ::: \"memory\");"));
  CHECK(tidied(translated("asm volatile(\"\" : \"+f\"(x) :: \"memory\");")) ==
        tidied("__asm__ __volatile__(\"\" : : : \"memory\");"));
  CHECK(tidied(translated("asm volatile(\"// a comment\\n\");")) ==
        tidied("__asm__ __volatile__(\"\" : : : \"memory\");"));
}

TEST_CASE("translate: PTX that the emulator does not know is named at its line") {
  CHECK(refusal_of("void f() {\n  asm volatile(\"mov.u32 %0, %%no;\" : \"=r\"(x));\n}") ==
        "a.cu:2: PTX: the emulator does not know `%no` in `mov.u32 %0, %%no`");
  CHECK(refusal_of("# 40 \"a.cu\"\n__asm__ __volatile__ (\"{ .reg .b32 x;\"\n\" vadd  x; }\");") ==
        "a.cu:40: PTX: the emulator does not know `vadd x`");
  CHECK(refusal_of("asm(R\"(\nvadd 0;)\");") == "a.cu:1: PTX: the emulator does not know `vadd 0`");
}

TEST_CASE("translate: CUDA's names that no header has, and libraries") {
  const std::string header =
      "# 1 \"/common/emulator/cuda.h\" 1\nvoid cudaMalloc(void**, unsigned long);\n# 2 \"a.cu\" 2\n";
  CHECK(refusal_of(header + "void f() { cudaMalloc(&p, 1); cudaGraphCreate(&graph, 0); }") ==
        "a.cu:2: the emulator has no cudaGraphCreate");
  CHECK(refusal_of("\nvoid f(cudaTextureObject_t t, const cudaGraph_t& g);") ==
        "a.cu:2: the emulator has no cudaTextureObject_t");
  CHECK(refusal_of("const cudaGraph_t& graph = its;") == "a.cu:1: the emulator has no cudaGraph_t");
  CHECK(refusal_of("float x = tex2D<float>(t, 1, 2);") == "a.cu:1: the emulator has no tex2D");
  CHECK(refusal_of("__nv_fp4_e2m1 x;") == "a.cu:1: the emulator has no __nv_fp4_e2m1");
  CHECK(refusal_of("CUcontext context;") == "a.cu:1: the emulator has no CUcontext");
  for (const char* own :
       {"void cudaCheck(int e) {}\nint x = cudaCheck(2);", "int cudaTime = 0; int y = cudaTime;",
        "T* cuBuffer; f(cuBuffer);", "vec<T> cuBuffer; f(cuBuffer);", "its.cuSize + cuda::cuX;",
        "current.texture3D(1); CUDA_CHECK(x); custom(cudamalloc); text2D(surface);"})
    CHECK(is_unchanged(own));

  const std::string of_library =
      "# 1 \"its.h\" 1\nconst CUmemX kind = CU_MEM_X;\nstruct alignas(8) Its { CUmemX x;\nvoid f(CUmemX y) "
      "{\n  if (y) cuMemFree(cudaX); } };\n# 2 \"a.cu\" 2\n";
  CHECK(tidied(translated(of_library)) ==
        tidied("# 1 \"its.h\" 1\nnamespace emulator::cuda { struct CUmemX {}; } const CUmemX kind ;\nstruct "
               "alignas(8) Its { CUmemX x;\nvoid f(CUmemX y) { ::emulator::program::stop(R\"(its.h:4: the "
               "emulator has no cuMemFree)\");\n } };\n# 2 \"a.cu\" 2\n"));
  CHECK(refusal_of(of_library + "CUmemX x;") == "a.cu:2: the emulator has no CUmemX");

  const std::string library = "# 1 \"/usr/include/cublas_v2.h\" 1\n\n# 2 \"a.cu\" 2\n";
  CHECK(refusal_of("\n\n" + library) == "a.cu:3: the library cublas is not emulated");
  CHECK(refusal_of("# 1 \"/usr/a/thrust/b/sort.h\" 1\n") == "a.cu:1: the library thrust is not emulated");
  CHECK(refusal_of("# 1 \"/usr/a/cudaEGL.h\" 1\n") == "a.cu:1: the library cudaEGL is not emulated");
  CHECK(refusal_of("# 1 \"/usr/common/emulator/cuda_headers/cuda.h\" 1\n") == "");
  CHECK(refusal_of("# 1 \"/usr/b.h\" 1\n" + library) == "");  // it is no program that includes it
  const auto all = [](std::string_view) { return true; };
  CHECK(contains(translate(kMarker + library, all), "cublas"));  // somebody's own that is called so
}

TEST_CASE("translate: a small program") {
  CHECK(tidied(translated("template <int BLOCK>\n"
                          " void reduce(const float* in, float* out, int n) {\n"
                          "  extern __attribute__((aligned(16))) __flashsteps_shared__ float smem[];\n"
                          "  __flashsteps_shared__ float total;\n"
                          "  for (int s = BLOCK >> 1; s > 0; s >>= 1)\n"
                          "    if (threadIdx.x < s) smem[threadIdx.x] += smem[threadIdx.x + s];\n"
                          "}\n"
                          "int main() {\n"
                          "  const int n = 1 << 20;\n"
                          "  do { reduce<256><<<(n + 255) / 256, 256, 256 * sizeof(float)>>>(in, out, n); "
                          "check(\"a.cu\", 10); } while (0);\n"
                          "  std::cout << out[0] << std::endl;\n"
                          "}\n")) ==
        tidied("template <int BLOCK>\n"
               " void reduce(const float* in, float* out, int n) {\n"
               "  struct flashsteps_dynamic_31 { __attribute__((aligned(16))) float smem [1]; }; float* "
               "const smem = "
               "reinterpret_cast<float*>(::emulator::program::dynamic<flashsteps_dynamic_31>())    ;\n"
               "  " +
               static_variables(37, "float total", {"total"}) +
               "\n"
               "  for (int s = BLOCK >> 1; s > 0; s >>= 1)\n"
               "    if (threadIdx.x < s) smem[threadIdx.x] += smem[threadIdx.x + s];\n"
               "}\n"
               "int main() {\n"
               "  const int n = 1 << 20;\n"
               "  do { ::emulator::program::launch({\"a.cu\", 10}, dim3((n + 255) / 256), dim3( 256), 256 * "
               "sizeof(float), "
               "nullptr, [=](auto... flashsteps_args) { reduce<256>(flashsteps_args...); }, in, out, n); "
               "check(\"a.cu\", 10); } while (0);\n"
               "  std::cout << out[0] << std::endl;\n"
               "}\n"));
}

TEST_CASE("find_kernels: by their qualified names, each once") {
  const std::string global = "__attribute__((__unused__)) ";  // what kernel_server.h makes of __global__
  const auto kernels = [](const std::string& text) {
    return flashsteps::find_kernels(kMarker + text, is_own);
  };
  using Names = std::vector<std::string>;
  CHECK(kernels(global + "void f(int); " + global + "void f(int) {} void g() {}") == Names{"f"});
  CHECK(kernels("template <int N> " + global + "void __attribute__((aligned(8))) f(int (*p)(int)) {}") ==
        Names{"f"});
  CHECK(kernels(global + "void __specifier__(2) f(int) {}") == Names{"f"});
  CHECK(kernels("extern \"C\" { static " + global + "void f() {} } " + "extern \"C\" " + global +
                "void g() {}") == Names{"f", "g"});
  CHECK(kernels("namespace a::b { inline namespace { " + global + "void f() {} } }") == Names{"a::b::f"});
  CHECK(kernels("template <> " + global + "void f<3>(int) {}").empty());
  CHECK(kernels("struct S { friend " + global + "void f(); };").empty());
  CHECK(kernels("# 1 \"b.h\"\n" + global + "void f() {}").empty());
}
