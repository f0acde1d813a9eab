// Instructions of Hopper GPUs, and the ring of stages through which a cluster streams
// an operand. Included by them.

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned long long u64;
typedef long long i64;

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// ---- blocks of a cluster

__device__ __forceinline__ u32 rank_in_cluster() {
    u32 rank;
    asm volatile("mov.u32 %0, %cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\n barrier.cluster.wait.acquire;" ::: "memory");
}
__device__ __forceinline__ void barrier_init(u32 at, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_expect(u32 at, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(u32 at, u32 block) {  // of this cluster
    asm volatile(
        "{\n .reg .b32 there;\n mapa.shared::cluster.u32 there, %0, %1;\n"
        " mbarrier.arrive.shared::cluster.b64 _, [there];\n}" :: "r"(at), "r"(block) : "memory");
}
// Not with the scope of a cluster, though blocks of it arrive: that would empty L1 every time.
__device__ __forceinline__ bool barrier_passed(u32 at, u32 parity) {
    u32 passed;
    asm volatile(
        "{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        " selp.u32 %0, 1, 0, p;\n}" : "=r"(passed) : "r"(at), "r"(parity) : "memory");
    return passed;
}
__device__ __forceinline__ void barrier_wait(u32 at, u32 parity) {
    while (!barrier_passed(at, parity)) {}
}
// `bytes` into the same place of every block of the cluster, whose barriers count them.
template <int BLOCKS>
__device__ __forceinline__ void fetch(u32 to, const void* from, u32 bytes, u32 barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1], %2, [%3], %4;"
        :: "r"(to), "l"(from), "r"(bytes), "r"(barrier), "h"((u16)((1 << BLOCKS) - 1)) : "memory");
}

// COUNT stages of BYTES in shared memory, which the BLOCKS of a cluster fill for each other, and for each
// stage two barriers: it is full, it is empty.
template <int COUNT, int BYTES, int BLOCKS>
struct RingOf {
    u32 stages, full, empty;  // of the first stage
    int stage;
    u32 phase;
    __device__ __forceinline__ RingOf(u32 stages, u32 barriers)
        : stages(stages), full(barriers), empty(barriers + 8 * COUNT), stage(0), phase(0) {}
    __device__ __forceinline__ void next() {
        if (++stage == COUNT) { stage = 0; phase ^= 1; }
    }
    // By one thread, before the cluster meets. Of each of `warps` a lane says that a stage is empty.
    __device__ __forceinline__ void make_barriers(int warps) const {
        for (int s = 0; s < COUNT; ++s) {
            barrier_init(full + 8 * s, 1);
            barrier_init(empty + 8 * s, BLOCKS * warps);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    // This block's part of a stage, to all.
    __device__ __forceinline__ void fill(const char* from, u32 rank) const {
        constexpr int part = BYTES / BLOCKS;
        barrier_wait(empty + 8 * stage, phase ^ 1);
        barrier_expect(full + 8 * stage, BYTES);
        fetch<BLOCKS>(stages + stage * BYTES + rank * part, from + rank * part, part, full + 8 * stage);
    }
    __device__ __forceinline__ u32 filled() const {
        barrier_wait(full + 8 * stage, phase);
        return stages + stage * BYTES;
    }
    __device__ __forceinline__ void give_free(int which) const {
        u32 lane = threadIdx.x % 32;
        if (lane < BLOCKS) barrier_arrive(empty + 8 * which, lane);
    }
};

// ---- matrices

// Core matrices: `inner` bytes to the next eight columns, 128 to the next eight rows.
__device__ __forceinline__ u64 descriptor(u32 at, u32 inner) {
    return (u64)((at & 0x3FFFF) >> 4) | (u64)(inner >> 4) << 16 | (u64)(128 >> 4) << 32;
}
__device__ __forceinline__ void multiply_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void multiply_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void multiply_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(LEFT) : "memory");
}
__device__ __forceinline__ void store_matrices(u32 at, const u32 (&v)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};"
                 :: "r"(at), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}

// ---- bfloat16

__device__ __forceinline__ u32 pack(float low, float high) {
    u32 v;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
    return v;
}
__device__ __forceinline__ uint4 pack(const float (&v)[8]) {
    return make_uint4(pack(v[0], v[1]), pack(v[2], v[3]), pack(v[4], v[5]), pack(v[6], v[7]));
}
