// Labels through all maps in one launch: see chain.cuh.

#include "chain.cuh"

constexpr int AHEAD = 10;  // steps whose inputs are on their way from memory

struct Forward {
    const void* E;        // (labels, WIDTH)
    u16* X;               // (MAPS, plane, WIDTH + ONES), null where nothing is kept
    unsigned char* kept;  // (MAPS, labels, VECTORS): signs under relu; otherwise P
    u16* Y;               // (labels, WIDTH)
};

// What is read again soon shall stay in L2, though more streams through than it holds.
__device__ __forceinline__ u64 policy(bool again) {
    u64 stay, go;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(stay));
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(go));
    return again ? stay : go;
}
__device__ __forceinline__ uint4 load(const uint4* at, u64 policy) {
    uint4 v;
    asm volatile("ld.global.L2::cache_hint.v4.u32 {%0,%1,%2,%3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at), "l"(policy) : "memory");
    return v;
}

struct Inputs {
    uint4 E[2];
    u32 bits;
};

template <bool ENTER>
__device__ __forceinline__ void load(Inputs& in, const uint4* E, const unsigned char* bits, int vector, u64 policy) {
    if (ENTER || RESIDUAL) {
        in.E[0] = load(E + (NARROW ? vector : 2 * vector), policy);
        if (!NARROW) in.E[1] = load(E + 2 * vector + 1, policy);
    }
    if (MASK_IN || (!ENTER && MASK_OUT)) in.bits = bits[vector];
}

// The input of the next map, or with `map` = MAPS - 1 the result, from the product of this one.
template <bool ENTER>
__device__ __forceinline__ void advance(const Labels& l, const Forward& f, Place p, int map) {
    p.forget();
    const bool last = map == MAPS - 1;
    const float half_scale = last && MASK_IN ? 0.5f : 0.5f * l.scale;
    const u32 all = last && MASK_IN ? 0x40404040u : 0;
    const uint4* E = (const uint4*)f.E + p.label * (NARROW ? VECTORS : 2 * VECTORS);
    const unsigned char* bits = MASK ? bits_of(l, p, MASK_IN && !last ? map + 1 : ENTER ? 0 : map) : nullptr;
    unsigned char* kept = f.kept + ((i64)(ENTER ? 0 : map) * l.labels + p.label) * VECTORS * KEPT;
    const bool keep = !ENTER && ACTIVATION && f.X;
    const u64 cached = policy(!last);
    Inputs inputs[INNER];
#pragma unroll
    for (int step = 0; step < AHEAD && step < INNER; ++step)
        load<ENTER>(inputs[step], E, bits, p.vector(step), cached);
#pragma unroll
    for (int step = 0; step < INNER; ++step) {
        if (step + AHEAD < INNER)
            load<ENTER>(inputs[step + AHEAD], E, bits, p.vector(step + AHEAD), cached);
        if (!p.writes(step)) continue;
        const u32 at = p.in_shared(step);
        const Inputs& in = inputs[step];
        float v[8];
        if (!ENTER) {
            uint4 P = shared_load(at);
            if (ACTIVATION == RELU) {
                P = make_uint4(relu(P.x), relu(P.y), relu(P.z), relu(P.w));
                if (keep) kept[p.vector(step)] = positive(P);
            } else if (ACTIVATION && keep) {
                stream_store(kept + 16 * p.vector(step), P);
            }
            unpack(v, P);
            if (ACTIVATION && ACTIVATION != RELU)
#pragma unroll
                for (int e = 0; e < 8; ++e) v[e] = activate(v[e]);
            if (MASK_OUT) drop(v, in.bits, 0.5f * l.scale, 0);
        }
        if (ENTER || RESIDUAL) {
            float E[8];
            if (NARROW) {
                unpack(E, in.E[0]);
            } else {
                const u32 words[8] = {in.E[0].x, in.E[0].y, in.E[0].z, in.E[0].w,
                                      in.E[1].x, in.E[1].y, in.E[1].z, in.E[1].w};
#pragma unroll
                for (int e = 0; e < 8; ++e) E[e] = __uint_as_float(words[e]);
            }
#pragma unroll
            for (int e = 0; e < 8; ++e) v[e] = ENTER ? E[e] : v[e] + E[e];
        }
        if (MASK_IN) drop(v, in.bits, half_scale, all);
        shared_store(at, pack(v));
    }
}

// The sums of a map begin with its bias.
__device__ __forceinline__ void start_with(float (&c)[2][OUTPUTS], const float* bias) {
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) {
        float2 b = make_float2(0.0f, 0.0f);
        if (8 * group < WIDTH) b = *(const float2*)(bias + 8 * group + threadIdx.x % 4 * 2);
#pragma unroll
        for (int e = 0; e < 4; ++e) c[group / HALF][4 * (group % HALF) + e] = e % 2 ? b.y : b.x;
    }
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
chain_forward(
    const void* E, const char* U, const float* bias, const unsigned char* bits, u16* X,
    unsigned char* kept, u16* Y, int labels, int plane, int rows, int tiles, float scale) {
    extern __shared__ __align__(1024) char memory[];
    if (X) clear_rows(X, MAPS, labels, plane, WIDTH + ONES);
    clear_rows(Y, 1, labels, rows, WIDTH);
    u32 X_at = shared_address(memory);
    Ring ring(X_at + X_BYTES, X_at + X_BYTES + STAGES * STAGE_BYTES);
    if (divide_work(ring, U, tiles, false)) {
        Labels l = {bits, scale, labels};
        Forward f = {E, X, kept, Y};
        for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            Place p(tile, labels, X_at);
            advance<true>(l, f, p, -1);
            shared_is_written(p.warpgroup);
#pragma unroll 1
            for (int map = 0; map < MAPS; ++map) {
                const int stride = WIDTH + ONES;
                {
                    float c[2][OUTPUTS];
                    start_with(c, bias + map * WIDTH);
                    product(c, X_at, ring, p, X ? X + (i64)map * plane * stride : nullptr, stride, true);
                    warpgroup_sync(p.warpgroup);
                    drain(c, p);
                }
                advance<false>(l, f, p, map);
                shared_is_written(p.warpgroup);
            }
#pragma unroll 5
            for (int step = 0; step < INNER; ++step) copy_out(p, step, Y, WIDTH, false);
            __syncwarp();
        }
    }
    cluster_sync();
}
