// What the label encoder's chain of maps does to parameters, not labels: see chain.cuh.
//
// The compiler is given WIDTH, MAPS and MOST of them. All U are bfloat16, or `wide`: float32; so are all b,
// whose digits count where those of U are rounded.

#include "../../runtime/hopper.cuh"

constexpr int GROUPS = (WIDTH + 15) / 16 * 2;  // of eight columns, with padding
constexpr int ONES = 16;                       // columns of ones behind X
constexpr int THREADS = 256;

struct Parameters {
    const void* U[MOST];
    const void* b[MOST];  // null where there are none
};

__device__ __forceinline__ float entry(const void* from, int at, int wide) {
    return wide ? ((const float*)from)[at] : __uint_as_float((u32)((const u16*)from)[at] << 16);
}

// All U (n, k) as forward streams them, (MAPS, k / 8, n / 8, 8, 8), and as backward does, with n and k
// exchanged; all b side by side. A thread has one row of eight entries of both. `back` may be null.
extern "C" __global__ void __launch_bounds__(THREADS) chain_prepare(
    const __grid_constant__ Parameters from, uint4* forward, uint4* back, float* bias, int wide,
    int wide_biases) {
    const int thread = blockIdx.x * THREADS + threadIdx.x;
    const int n = thread % (8 * GROUPS), k = thread / (8 * GROUPS) % GROUPS * 8;
    const int map = thread / (8 * GROUPS * GROUPS);
    if (map >= MAPS) return;
    const bool inside = n < WIDTH && k < WIDTH;
    const void* U = from.U[map];
    float v[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) v[e] = inside ? entry(U, n * WIDTH + k + e, wide) : 0.0f;
    forward[thread] = pack(v);
    if (back) {
#pragma unroll
        for (int e = 0; e < 8; ++e) v[e] = inside ? entry(U, (k + e) * WIDTH + n, wide) : 0.0f;
        back[thread] = pack(v);
    }
    if (k == 0 && n < WIDTH) bias[map * WIDTH + n] = from.b[map] ? entry(from.b[map], n, wide_biases) : 0.0f;
}

// dU (MAPS, WIDTH, WIDTH) and db (MAPS, WIDTH) from their sums (MAPS, parts, WIDTH, WIDTH + ONES), where
// db is the first column of ones.
extern "C" __global__ void __launch_bounds__(THREADS) chain_finish(
    const float* sums, void* dU, void* db, int parts, int wide, int wide_biases) {
    constexpr int VECTORS = WIDTH / 4 + 1;  // of a row, the last for db
    const int thread = blockIdx.x * THREADS + threadIdx.x;
    const int vector = thread % VECTORS, row = thread / VECTORS % WIDTH, map = thread / (VECTORS * WIDTH);
    if (map >= MAPS) return;
    const float* part = sums + ((i64)map * parts * WIDTH + row) * (WIDTH + ONES) + 4 * vector;
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 3
    for (int i = 0; i < parts; ++i) {
        float4 w = *(const float4*)(part + (i64)i * WIDTH * (WIDTH + ONES));
        v.x += w.x, v.y += w.y, v.z += w.z, v.w += w.w;
    }
    const int line = map * WIDTH + row;
    if (vector == WIDTH / 4) {
        if (wide_biases) ((float*)db)[line] = v.x;
        else ((u16*)db)[line] = (u16)pack(v.x, 0.0f);
    } else if (wide) {
        ((float4*)dU)[line * (WIDTH / 4) + vector] = v;
    } else {
        ((uint2*)dU)[line * (WIDTH / 4) + vector] = make_uint2(pack(v.x, v.y), pack(v.z, v.w));
    }
}
