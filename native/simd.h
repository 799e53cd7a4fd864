// Vector types, and everything that differs between instruction sets.
//
// Every source file of the loops is compiled once for each instruction set, into the namespace LEVEL (base, avx2 or
// avx512). Everything else has internal linkage, and no templates of the standard library are used. Otherwise the
// linker could merge functions that were compiled for different CPUs.
#pragma once

#include <cstdint>
#include <cstring>
#include <new>

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define INLINE inline __attribute__((always_inline))

namespace {

// ---- 64-bit words -------------------------------------------------------------------------------

using Word = uint64_t;

#if defined(__AVX512F__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
typedef Word Plane __attribute__((vector_size(8 * LANES)));
typedef Word UnalignedPlane __attribute__((vector_size(8 * LANES), aligned(8), may_alias));

INLINE Plane broadcast(Word word) { return word - Plane{}; }

// Full adder: adds two planes to a third, in place, and returns the carry.
INLINE Plane full_add(Plane& sum, Plane a, Plane b) {
#if defined(__AVX512F__)
  const __m512i x = (__m512i)sum, y = (__m512i)a, z = (__m512i)b;
  const Plane carry = (Plane)_mm512_ternarylogic_epi64(x, y, z, 0xE8);
  sum = (Plane)_mm512_ternarylogic_epi64(x, y, z, 0x96);
#else
  const Plane half = a ^ b, carry = a ^ (half & (a ^ sum));  // a, or sum where a and b differ
  sum ^= half;
#endif
  return carry;
}

// Whether any bit is set.
INLINE bool any(Plane plane) {
#if defined(__AVX512F__)
  return _mm512_test_epi64_mask((__m512i)plane, (__m512i)plane) != 0;
#elif defined(__AVX2__)
  return !_mm256_testz_si256((__m256i)plane, (__m256i)plane);
#else
  Word bits = 0;
  for (int i = 0; i < LANES; ++i) bits |= plane[i];
  return bits != 0;
#endif
}

// The number of set bits in each lane.
INLINE Plane count_ones(Plane words) {
#if defined(__AVX512VPOPCNTDQ__)
  return (Plane)_mm512_popcnt_epi64((__m512i)words);
#elif defined(__AVX2__)
  const __m256i x = (__m256i)words, low = _mm256_set1_epi8(15);
  const __m256i ones = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4,  //
                                        0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
  const __m256i a = _mm256_shuffle_epi8(ones, _mm256_and_si256(x, low));
  const __m256i b = _mm256_shuffle_epi8(ones, _mm256_and_si256(_mm256_srli_epi64(x, 4), low));
  return (Plane)_mm256_sad_epu8(_mm256_add_epi8(a, b), _mm256_setzero_si256());
#elif defined(__x86_64__)  // without a popcount instruction
  Plane x = words - (words >> 1 & broadcast(Word(0x5555555555555555)));
  x = (x & broadcast(Word(0x3333333333333333))) + (x >> 2 & broadcast(Word(0x3333333333333333)));
  x = (x + (x >> 4)) & broadcast(Word(0x0F0F0F0F0F0F0F0F));
  x += x >> 8;
  x += x >> 16;
  return (x + (x >> 32)) & broadcast(Word(0x7F));
#else
  Plane out;
  for (int i = 0; i < LANES; ++i) out[i] = __builtin_popcountll(words[i]);
  return out;
#endif
}

// (a ^ b) & mask
INLINE Plane differing_in(Plane a, Plane b, Plane mask) {
#if defined(__AVX512F__)
  return (Plane)_mm512_ternarylogic_epi64((__m512i)a, (__m512i)b, (__m512i)mask, 0x28);
#else
  return (a ^ b) & mask;
#endif
}

// Sums of set bits, by lane. Without a popcount instruction, sums of bytes are kept, and added up at the end.
class OnesCounter {
 public:
  INLINE void add(Plane words) {
#if defined(__AVX2__) && !defined(__AVX512VPOPCNTDQ__)
    const __m256i x = (__m256i)words, low = _mm256_set1_epi8(15);
    const __m256i ones = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4,  //
                                          0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
    const __m256i a = _mm256_shuffle_epi8(ones, _mm256_and_si256(x, low));
    const __m256i b = _mm256_shuffle_epi8(ones, _mm256_and_si256(_mm256_srli_epi16(x, 4), low));
    sums_ = (Plane)_mm256_add_epi8((__m256i)sums_, _mm256_add_epi8(a, b));
#else
    sums_ += count_ones(words);
#endif
  }

  // The sums of at most 31 words.
  INLINE Plane total() const {
#if defined(__AVX2__) && !defined(__AVX512VPOPCNTDQ__)
    return (Plane)_mm256_sad_epu8((__m256i)sums_, _mm256_setzero_si256());
#else
    return sums_;
#endif
  }

 private:
  Plane sums_ = {};
};

// A mask of the lanes of `values` that are below those of `bounds`; all must be less than 2^63.
INLINE unsigned lanes_below(Plane values, Plane bounds) {
#if defined(__AVX512F__)
  return _mm512_cmplt_epi64_mask((__m512i)values, (__m512i)bounds);
#elif defined(__AVX2__)
  return unsigned(_mm256_movemask_pd((__m256d)_mm256_cmpgt_epi64((__m256i)bounds, (__m256i)values)));
#else
  unsigned mask = 0;
  for (int i = 0; i < LANES; ++i) mask |= unsigned(values[i] < bounds[i]) << i;
  return mask;
#endif
}

// Whether any lane, read as a signed integer, is negative.
INLINE bool any_negative(Plane values) {
#if defined(__AVX512F__)
  return _mm512_movepi64_mask((__m512i)values) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_pd((__m256d)values) != 0;
#else
  Word bits = 0;
  for (int i = 0; i < LANES; ++i) bits |= values[i];
  return bits >> 63;
#endif
}

// The place of set bit number `number`, counted from the lowest; the word must have more bits set than that.
INLINE int find_set_bit(Word word, int64_t number) {
#if defined(__BMI2__)
  return __builtin_ctzll(_pdep_u64(Word(1) << number, word));
#else
  for (; number > 0; --number) word &= word - 1;
  return __builtin_ctzll(word);
#endif
}

// A mask of the lanes that have a bit set; the first lane is its lowest bit.
INLINE unsigned lanes_with(Plane plane, int bit) {
#if defined(__AVX512F__)
  return _mm512_test_epi64_mask((__m512i)plane, _mm512_set1_epi64(int64_t(Word(1) << bit)));
#elif defined(__AVX2__)
  return unsigned(_mm256_movemask_pd((__m256d)(plane << (63 - bit))));
#else
  unsigned lanes = 0;
  for (int i = 0; i < LANES; ++i) lanes |= unsigned(plane[i] >> bit & 1) << i;
  return lanes;
#endif
}

// ---- bytes --------------------------------------------------------------------------------------

typedef uint8_t Bytes __attribute__((vector_size(8 * LANES)));
typedef uint16_t Shorts __attribute__((vector_size(8 * LANES)));

typedef uint16_t UnalignedShorts __attribute__((vector_size(8 * LANES), aligned(2), may_alias));
constexpr int SHORTS = 4 * LANES;

// The lanes that are all ones in the result of a comparison: SHORT_BITS bits for each, the first lane lowest.
#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr int SHORT_BITS = 2;
#else
constexpr int SHORT_BITS = 1;
#endif
INLINE uint32_t mask_of_lanes(Shorts lanes) {
#if defined(__AVX512F__)
  return _mm512_movepi16_mask((__m512i)lanes);
#elif defined(__AVX2__)
  return uint32_t(_mm256_movemask_epi8((__m256i)lanes));
#else
  uint32_t mask = 0;
  for (int i = 0; i < SHORTS; ++i) mask |= uint32_t(lanes[i] & 1) << i;
  return mask;
#endif
}

// 16 bytes, repeated to fill a vector.
INLINE Bytes repeat_16(const uint8_t* bytes) {
#if defined(__AVX512F__)
  // The version without a mask makes GCC 12 warn of an uninitialised value.
  return (Bytes)_mm512_maskz_broadcast_i32x4(0xFFFF, _mm_loadu_si128((const __m128i*)bytes));
#elif defined(__AVX2__)
  return (Bytes)_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)bytes));
#else
  Bytes out;
  for (int i = 0; i < 8 * LANES; i += 16) std::memcpy((uint8_t*)&out + i, bytes, 16);
  return out;
#endif
}

// table[indexes[i]] for each byte i. The table repeats the same 16 bytes, and all indexes are below 16.
INLINE Bytes shuffle(Bytes table, Bytes indexes) {
#if defined(__AVX512F__)
  return (Bytes)_mm512_shuffle_epi8((__m512i)table, (__m512i)indexes);
#elif defined(__AVX2__)
  return (Bytes)_mm256_shuffle_epi8((__m256i)table, (__m256i)indexes);
#elif defined(__ARM_NEON)
  Bytes out;
  const uint8x16_t bytes = vld1q_u8((const uint8_t*)&table);
  for (int i = 0; i < 8 * LANES; i += 16)
    vst1q_u8((uint8_t*)&out + i, vqtbl1q_u8(bytes, vld1q_u8((const uint8_t*)&indexes + i)));
  return out;
#else
  Bytes out;
  for (int i = 0; i < 8 * LANES; ++i) out[i] = table[indexes[i]];
  return out;
#endif
}

// ---- floats -------------------------------------------------------------------------------------

#if defined(__AVX512F__)
constexpr int FLOATS = 16;
#else
constexpr int FLOATS = 8;
#endif
typedef float Floats __attribute__((vector_size(4 * FLOATS)));
typedef int32_t Ints __attribute__((vector_size(4 * FLOATS)));
typedef float UnalignedFloats __attribute__((vector_size(4 * FLOATS), aligned(4), may_alias));
typedef int32_t UnalignedInt __attribute__((may_alias));
typedef int32_t UnalignedInts __attribute__((vector_size(4 * FLOATS), aligned(4), may_alias));

INLINE Floats load(const float* at) { return *(const UnalignedFloats*)at; }
INLINE void store(float* at, Floats values) { *(UnalignedFloats*)at = values; }
INLINE Floats broadcast(float value) { return value - Floats{}; }

// a * b + c, rounded once if the CPU has fused multiply-add, and twice on baseline x86-64.
INLINE Floats fma(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__ARM_NEON)
  Floats out;
  for (int i = 0; i < FLOATS; i += 4) {
    float32x4_t x, y, z;
    std::memcpy(&x, (float*)&a + i, 16), std::memcpy(&y, (float*)&b + i, 16);
    std::memcpy(&z, (float*)&c + i, 16);
    z = vfmaq_f32(z, x, y);
    std::memcpy((float*)&out + i, &z, 16);
  }
  return out;
#else
  return a * b + c;
#endif
}

INLINE float fma(float a, float b, float c) {
#if defined(__FMA__) || defined(__ARM_NEON)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

// The sum of 16 lanes, in an order that does not depend on the instruction set.
INLINE float sum_of_16(const float* lanes) {
  float sums[8];
  for (int i = 0; i < 8; ++i) sums[i] = lanes[i] + lanes[i + 8];
  for (int i = 0; i < 4; ++i) sums[i] += sums[i + 4];
  return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

// ---- pairs of 16-bit integers -------------------------------------------------------------------

// sum[i] + a[2i] * b[2i] + a[2i + 1] * b[2i + 1]; each int32 lane of a and b holds two int16 values.
INLINE Ints add_products(Ints sum, Ints a, Ints b) {
#if defined(__AVX512VNNI__)
  return (Ints)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return sum + (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  Ints out;
  for (int i = 0; i < FLOATS; i += 4) {
    __m128i x, y;
    std::memcpy(&x, (int32_t*)&a + i, 16), std::memcpy(&y, (int32_t*)&b + i, 16);
    x = _mm_madd_epi16(x, y);
    std::memcpy((int32_t*)&out + i, &x, 16);
  }
  return sum + out;
#else
  return sum + (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}

// ---- memory and arithmetic ----------------------------------------------------------------------

enum class Content { zeros, undefined };

// An array on the heap, aligned to 64 bytes and initialised with zeros unless told otherwise.
template <class T>
class Array {
 public:
  explicit Array(int64_t n, Content content = Content::zeros)
      : data_(static_cast<T*>(::operator new(n * sizeof(T) + 64, std::align_val_t(64)))) {
    if (content == Content::zeros) std::memset(static_cast<void*>(data_), 0, n * sizeof(T));
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { ::operator delete(data_, std::align_val_t(64)); }
  T& operator[](int64_t i) const { return data_[i]; }
  T* operator+(int64_t i) const { return data_ + i; }
  T* data() const { return data_; }

 private:
  T* data_;
};

template <class T>
INLINE constexpr T min(T a, T b) {
  return a < b ? a : b;
}
template <class T>
INLINE T max(T a, T b) {
  return a < b ? b : a;
}

}  // namespace
