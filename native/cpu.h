// The instruction sets that the CPU and the operating system support. CPUID is read directly, because not every
// compiler's runtime library has __builtin_cpu_supports.
#pragma once

enum class Cpu { base, avx2, avx512 };

#if defined(__x86_64__)
#include <cpuid.h>

inline Cpu detect_cpu() {
  unsigned a, b, c, d, extended_c, os_state;
  if (!__get_cpuid(0x80000001, &a, &b, &extended_c, &d) || !__get_cpuid(1, &a, &b, &c, &d)) return Cpu::base;
  const unsigned need_1 = 1u << 12 | 1u << 23 | 1u << 27;                  // FMA, POPCNT, XGETBV
  if ((c & need_1) != need_1 || !(extended_c >> 5 & 1)) return Cpu::base;  // LZCNT
  __asm__("xgetbv" : "=a"(os_state), "=d"(d) : "c"(0));                    // registers that the operating system saves
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return Cpu::base;
  const unsigned need_avx2 = 1u << 3 | 1u << 5 | 1u << 8;                 // BMI, AVX2, BMI2
  const unsigned need_512_b = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;  // AVX-512 F, DQ, BW, VL
  const unsigned need_512_c = 1u << 11 | 1u << 14;                        // AVX-512 VNNI, VPOPCNTDQ
  if ((os_state & 0x06) != 0x06 || (b & need_avx2) != need_avx2) return Cpu::base;
  if ((os_state & 0xE6) != 0xE6 || (b & need_512_b) != need_512_b || (c & need_512_c) != need_512_c) return Cpu::avx2;
  return Cpu::avx512;
}
#else
inline Cpu detect_cpu() { return Cpu::base; }
#endif
