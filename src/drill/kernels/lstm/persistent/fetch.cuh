// Fetch: four warps, each a part of the block's share of the columns.

__device__ __forceinline__ bool fresh(uint4 v) {
    return v.x != EMPTY && v.y != EMPTY && v.z != EMPTY && v.w != EMPTY;
}

// After PATIENCE it gives up: `stalled` is set for everybody, who give up when they next look. A block
// that has multiplies NaN to the end, finishes NaN, and sends neither sums nor words. As it waits for
// nobody it would run ahead of blocks that have not looked yet, and break their barriers: bytes of a
// later round that come before those of this one are expected leave a count that is never zero again.
struct Fetcher {
    u32* stalled;
    bool dead;
    int item;
    int rounds;
    u32 start;

    // Called once a round of reading what was not there yet; false when there is no hope.
    __device__ __forceinline__ bool again() {
        if (dead) return false;
        if (++rounds % LOOK) return true;
        u32 t = now();
        if (!start) start = t;
        if (load1(stalled) || t - start > PATIENCE) {
            store1(stalled, 1u);
            hopeless = 1;
            dead = true;
        }
        return !dead;
    }

    // Words first to last, through registers, as soon as they are there. Two of them are waited for
    // before all are read: requests for more would be in the way of the writers.
    __device__ __forceinline__ void read(uint4* words, const uint4* from, int first, int last, int rows) {
        constexpr int AT_ONCE = 12;
        int lane = threadIdx.x % 32;
        if (first == last) return;
        const uint4* mark = from + min(first + (last - first) / 2 * (lane % 2) + rows / 2, last - 1);
        while (__any_sync(ALL, load1(mark) == EMPTY && again())) {}
        for (int base = first + lane; base < last; base += 32 * AT_ONCE) {
            uint4 v[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i)
                v[i] = base + 32 * i < last ? load4(from + base + 32 * i) : make_uint4(0, 0, 0, 0);
            for (;;) {
                bool stale = false;
#pragma unroll
                for (int i = 0; i < AT_ONCE; ++i) stale |= !fresh(v[i]);
                if (!stale) break;
                bool hope = again();
#pragma unroll
                for (int i = 0; i < AT_ONCE; ++i)
                    if (!fresh(v[i])) v[i] = hope ? load4(from + base + 32 * i) : make_uint4(BAD, BAD, BAD, BAD);
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i)
                if (base + 32 * i < last) words[base + 32 * i] = v[i];
        }
    }

    // The same in bulk, when the flags of the blocks that write them say so. Nothing orders a block's
    // words before its flag, so all are looked at.
    __device__ __forceinline__ void copy(uint4* words, const uint4* from, int first, int last, const u32* flags) {
        constexpr int AT_ONCE = 4;
        int lane = threadIdx.x % 32, part = threadIdx.x / 32 % PARTS;
        if (first == last) return;
        int column = blockIdx.x % CLUSTER * SHARE;
        int block = (column + part * STEPS / PARTS * 16) / WRITTEN, end = (column + (part + 1) * STEPS / PARTS * 16 - 1) / WRITTEN;
        if (BACKWARD || item >= GROUPS)  // the initial state is there
            while (__any_sync(ALL, load1(flags + min(block + lane, end)) != READY && again())) {}
        if (lane == 0) {
            expect(&landed[part], (last - first) * 16);
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                         :: "r"(shared_of(words + first)), "l"(from + first), "r"((last - first) * 16),
                            "r"(shared_of(&landed[part])) : "memory");
        }
        wait(&landed[part], item);
        bool stale = false;
        for (int base = first + lane; base < last; base += 32 * AT_ONCE) {
            uint4 v[AT_ONCE];  // all read before the first is looked at
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) v[i] = words[min(base + 32 * i, last - 1)];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) stale |= !fresh(v[i]);
        }
        if (!stale) return;
        for (int i = first + lane; i < last; i += 32) {
            uint4 v = words[i];
            while (!fresh(v)) v = again() ? load4(from + i) : make_uint4(BAD, BAD, BAD, BAD);
            words[i] = v;
        }
    }

    // The next item: `share` is the block's first column of the group, `flags` are those of all blocks.
    __device__ __forceinline__ void fetch(const half* share, int rows, const u32* flags) {
        int part = threadIdx.x / 32 % PARTS, slot = item % SLOTS;
        int first = part * STEPS / PARTS * 2 * rows, last = (part + 1) * STEPS / PARTS * 2 * rows;
        uint4* words = (uint4*)(memory + slot * SLOT);
        rounds = 0;
        start = 0;
        if (item >= SLOTS) wait(&empty[slot], item / SLOTS - 1);
        if (LARGE) copy(words, (const uint4*)share, first, last, flags);
        else read(words, (const uint4*)share, first, last, rows);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the matrix instruction reads them
        __syncwarp();
        if (threadIdx.x % 32 == 0) arrive(&full[slot][part]);
        ++item;
    }
};
