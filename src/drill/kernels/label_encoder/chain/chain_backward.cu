// Gradients of labels back through all maps in one launch: see chain.cuh.

#include "chain.cuh"

constexpr int AHEAD = 18;  // steps whose inputs are on their way from memory

struct Backward {
    const u16* dY;              // (labels, WIDTH)
    const unsigned char* kept;  // as forward wrote it
    u16* G;                     // (MAPS - 1, labels, WIDTH): gradients that reach E from the results
    float* dE;                  // (labels, WIDTH)
};

enum { TOP, BETWEEN, LEAVE };

struct Inputs {
    uint4 dY, products, G[MAPS > 1 ? MAPS - 1 : 1];
    u32 bits, positive;
};

struct Sources {
    const uint4 *dY, *G;
    const unsigned char *bits, *kept;
    i64 plane;
};

template <int WHERE>
__device__ __forceinline__ void load(Inputs& in, const Sources& from, int vector) {
    if (WHERE == TOP || (WHERE == LEAVE && RESIDUAL)) in.dY = from.dY[vector];
    if ((WHERE != TOP && MASK_IN) || (WHERE != LEAVE && MASK_OUT)) in.bits = from.bits[vector];
    if (WHERE == LEAVE && RESIDUAL)
#pragma unroll
        for (int map = 0; map < MAPS - 1; ++map) in.G[map] = from.G[map * from.plane + vector];
    if (WHERE == LEAVE) return;
    if (ACTIVATION == RELU) in.positive = from.kept[vector];
    else if (ACTIVATION) in.products = ((const uint4*)from.kept)[vector];
}

__device__ __forceinline__ void add(float (&sum)[8], uint4 w) {
    float v[8];
    unpack(v, w);
#pragma unroll
    for (int e = 0; e < 8; ++e) sum[e] += v[e];
}

// dP of map `map` from dX of the map above, or at the top from dY; or at last dE: through the first
// map and, with residuals, from every result.
template <int WHERE>
__device__ __forceinline__ void retreat(const Labels& l, const Backward& f, Place p, int map) {
    p.forget();
    constexpr int FEWER = AHEAD * 10 / (6 + 4 * MAPS);  // each takes that many more registers
    constexpr int FLIGHT = WHERE != LEAVE ? AHEAD : FEWER > 1 ? FEWER : 1;
    const i64 first = p.label * VECTORS;
    Sources from;
    from.plane = (i64)l.labels * VECTORS;
    from.dY = (const uint4*)f.dY + first;
    from.G = (const uint4*)f.G + first;
    from.bits = MASK ? bits_of(l, p, WHERE == BETWEEN && MASK_IN ? map + 1 : map) : nullptr;
    from.kept = f.kept + (map * from.plane + first) * KEPT;
    uint4* G = (uint4*)f.G + map * from.plane + first;
    float4* dE = (float4*)f.dE + 2 * first;
    Inputs inputs[INNER];
#pragma unroll
    for (int step = 0; step < FLIGHT && step < INNER; ++step) load<WHERE>(inputs[step], from, p.vector(step));
#pragma unroll
    for (int step = 0; step < INNER; ++step) {
        if (step + FLIGHT < INNER) load<WHERE>(inputs[step + FLIGHT], from, p.vector(step + FLIGHT));
        if (!p.writes(step)) continue;
        const u32 at = p.in_shared(step);
        const Inputs& in = inputs[step];
        float g[8];
        unpack(g, WHERE == TOP ? in.dY : shared_load(at));
        if (WHERE != TOP && MASK_IN) drop(g, in.bits, 0.5f * l.scale, 0);
        if (WHERE == LEAVE) {
            if (RESIDUAL) {
                add(g, in.dY);
#pragma unroll
                for (int above = 0; above < MAPS - 1; ++above) add(g, in.G[above]);
            }
            dE[2 * p.vector(step)] = make_float4(g[0], g[1], g[2], g[3]);
            dE[2 * p.vector(step) + 1] = make_float4(g[4], g[5], g[6], g[7]);
            continue;
        }
        if (WHERE == BETWEEN && RESIDUAL) G[p.vector(step)] = pack(g);
        if (MASK_OUT) drop(g, in.bits, 0.5f * l.scale, 0);
        if (ACTIVATION == RELU) {
#pragma unroll
            for (int e = 0; e < 8; ++e) g[e] *= in.positive >> (e % 2 ? 7 : 3) - e / 2 & 1 ? 1.0f : 0.0f;
        } else if (ACTIVATION) {
            float x[8];
            unpack(x, in.products);
#pragma unroll
            for (int e = 0; e < 8; ++e) g[e] *= slope(x[e]);
        }
        shared_store(at, pack(g));
    }
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
chain_backward(
    const u16* dY, const char* U, const unsigned char* bits, const unsigned char* kept, u16* G, u16* dP,
    float* dE, int labels, int plane, int tiles, float scale) {
    extern __shared__ __align__(1024) char memory[];
    clear_rows(dP, MAPS, labels, plane, WIDTH);
    u32 X_at = shared_address(memory);
    Ring ring(X_at + X_BYTES, X_at + X_BYTES + STAGES * STAGE_BYTES);
    if (divide_work(ring, U, tiles, true)) {
        Labels l = {bits, scale, labels};
        Backward f = {dY, kept, G, dE};
        for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            Place p(tile, labels, X_at);
            retreat<TOP>(l, f, p, MAPS - 1);
            shared_is_written(p.warpgroup);
#pragma unroll 1
            for (int map = MAPS - 1; map >= 0; --map) {
                {
                    float c[2][OUTPUTS];
#pragma unroll
                    for (int i = 0; i < 2 * OUTPUTS; ++i) c[i / OUTPUTS][i % OUTPUTS] = 0.0f;
                    product(c, X_at, ring, p, dP + (i64)map * plane * WIDTH, WIDTH, false);
                    warpgroup_sync(p.warpgroup);
                    drain(c, p);
                }
                if (map) {
                    retreat<BETWEEN>(l, f, p, map - 1);
                    shared_is_written(p.warpgroup);
                } else {
                    retreat<LEAVE>(l, f, p, 0);
                }
            }
            __syncwarp();
        }
    }
    cluster_sync();
}
