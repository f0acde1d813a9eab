// One LSTM layer forward: see recurrence.cuh.
//
// gates (T, B, H, 4): in, what the input gives; out, the activations. h (T + 1, B, H) bfloat16 and
// c (T + 1, B, H): row 0 of c is the initial state, the other rows are written. exchange (T, B H)
// holds the hidden state before each step, by group (H / 8, rows, 8): that of step 0 is there, the rest
// is EMPTY, as are the flags (T, groups, blocks). The pointers are those of the first step of the launch:
// where `later` ones are another launch's, the state after the last step goes to the exchange, too.
//
// Warpgroup w of each block multiplies the rows of the units of the cluster's block w. They are ordered
// so that a thread and its neighbour four lanes on hold the gates i f and g o of one unit.

#include "recurrence.cuh"
#include "fetch.cuh"
#include "multiply.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1) __cluster_dims__(CLUSTER, 1, 1) lstm_forward(
    const half* W, const float4* bias, float4* gates, half* exchange, u32* flags, half* h, float* c,
    int steps, int batch, int size, u32* stalled, int later) {
    Groups groups{batch, size};
    int role = __shfl_sync(ALL, threadIdx.x / 128, 0), rank = blockIdx.x % CLUSTER;
    int thread = threadIdx.x % 128, lane = thread % 32, odd = lane / 4 % 2, within = thread / 32 * 4 + lane / 8;
    const long long step = (long long)batch * H;
    set_up_barriers();
    if (role < WARPGROUPS) {
        take_registers_to_multiply();
        Slice slice;
        int unit = (blockIdx.x - rank + role) * OWN + within;
        const half* low = W + (long long)(4 * unit + 2 * odd) * H + rank * SHARE;
        slice.load(low, low + H, true);
        slice.send_products(steps * GROUPS, groups);
    } else if (role == WARPGROUPS) {
        leave_registers_to_finish();
        int unit = blockIdx.x * OWN + within;
        float* cells = (float*)kept() + thread;  // (GROUPS, TILES, 128)
        float4* inputs = (float4*)((float*)kept() + GROUPS * TILES * 128) + thread;  // (TILES, 128), of the next item
        auto row_of = [&](int j) { return 8 * j + 2 * (lane % 4) + odd; };
        float4 gate[TILES], b = bias[unit];
        auto send_for_inputs = [&](int item) {
            int n = item % GROUPS;
            const float4* from = gates + item / GROUPS * step + groups.first(n) * H + unit;
#pragma unroll
            for (int j = 0; j < TILES; ++j)
                if (row_of(j) < groups.rows(n)) send_for(inputs + j * 128, from + row_of(j) * H);
        };
        for (int n = 0; n < GROUPS; ++n)
            for (int j = 0; j < TILES; ++j)
                if (row_of(j) < groups.rows(n))
                    cells[(n * TILES + j) * 128] = c[(groups.first(n) + row_of(j)) * H + unit];
        send_for_inputs(0);
        int item = 0;
        for (int t = 0; t < steps; ++t)
            for (int n = 0; n < GROUPS; ++n, ++item) {
                int rows = groups.rows(n);
                float cell[TILES], hidden[TILES];
                wait_for_sent();
#pragma unroll
                for (int j = 0; j < TILES; ++j) {
                    gate[j] = inputs[j * 128];
                    add(gate[j], b);
                    cell[j] = cells[(n * TILES + j) * 128];
                }
                if (item + 1 < steps * GROUPS) send_for_inputs(item + 1);  // over those just read
                half* next = exchange + (t + 1) * step + groups.first(n) * H + unit / 8 * rows * 8 + unit % 8;
                const float4* sums = sums_of(item) + thread;
                const bool hope = wait_for_sums(item, rows, thread == 0, stalled);
                const bool tells = hope && (t + 1 < steps || later);
                // A loop for each stage: the tiles' latencies overlap.
#pragma unroll
                for (int j = 0; j < TILES; ++j) {
                    float4 d = sums[j * 128];  // one gate in two batch rows, then another one
                    if (CLUSTER > 1) add(d, sums[(TILES + j) * 128]);
                    float r0 = __shfl_xor_sync(ALL, odd ? d.x : d.y, 4);
                    float r1 = __shfl_xor_sync(ALL, odd ? d.z : d.w, 4);
                    add(gate[j], odd ? make_float4(r0, r1, d.y, d.w) : make_float4(d.x, d.z, r0, r1));
                }
#pragma unroll
                for (int j = 0; j < TILES; ++j) {
                    float4 s = gate[j];
                    gate[j] = make_float4(sigmoid(s.x), sigmoid(s.y), tanh_(s.z), sigmoid(s.w));
                    cell[j] = hope ? gate[j].y * cell[j] + gate[j].x * gate[j].z : __uint_as_float(BAD);
                    hidden[j] = gate[j].w * tanh_(cell[j]);
                }
                u32 pair[TILES];
#pragma unroll
                for (int j = 0; j < TILES; ++j) pair[j] = pack(hidden[j], __shfl_xor_sync(ALL, hidden[j], 8));
#pragma unroll
                for (int j = 0; j < TILES; ++j)
                    if (row_of(j) < rows && unit % 2 == 0 && tells) store1(next + row_of(j) * 8, pair[j]);
                if (LARGE && lane == 0 && tells) add1(flags_of(flags, t + 1, n) + blockIdx.x);
                // what follows is on nobody's way
                const long long at = t * step + groups.first(n) * H + unit;
#pragma unroll
                for (int j = 0; j < TILES; ++j) {
                    if (row_of(j) >= rows) continue;
                    int place = row_of(j) * H;
                    cells[(n * TILES + j) * 128] = cell[j];
                    if (unit % 2 == 0) *(u32*)(h + at + step + place) = pair[j];
                    gates[at + place] = gate[j];
                    c[at + step + place] = cell[j];
                }
            }
    } else {
        leave_registers_to_fetch();
        Fetcher fetcher{stalled};
        for (int t = 0; t < steps; ++t)
            for (int n = 0; n < GROUPS; ++n) {
                int rows = groups.rows(n), row = threadIdx.x % 128 / 2;
                if (LARGE && t + 2 < steps && row < rows)
                    prefetch(gates + (t + 2) * step + (groups.first(n) + row) * H + blockIdx.x * OWN + threadIdx.x % 2 * 8);
                const half* share = exchange + t * step + groups.first(n) * H + rank * SHARE * rows;
                fetcher.fetch(share, rows, flags_of(flags, t, n));
            }
    }
    leave();
}
