// A step of SGD over many tensors in two launches: the squared norm of the gradients, then clipping,
// weight decay, the step and, where there are averages, their update.
//
//     r = min(1, clip / (|g| + 1e-6))
//     w <- w - rate (r g + decay w)         a <- a + share (w - a)
//
// `rate` and `share` are read from device memory: a captured launch finds new ones at every replay.
// Sums have one order, so that a step can be repeated bit for bit.

constexpr int CHUNK = 4096;   // entries that a block works on at a time
constexpr int THREADS = 256;

struct Tensors {
    float* weights[MOST];
    const float* gradients[MOST];
    float* averages[MOST];       // null where nothing is averaged
    long long sizes[MOST];
    int first[MOST + 1];         // chunk of each tensor
    int count;
};

struct Place {
    int tensor;
    long long start;
    int length;
};

__device__ __forceinline__ Place find(const Tensors& t, int chunk) {
    int low = 0, high = t.count - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (t.first[middle] <= chunk) low = middle;
        else high = middle - 1;
    }
    long long start = (long long)(chunk - t.first[low]) * CHUNK;
    long long left = t.sizes[low] - start;
    return {low, start, (int)(left < CHUNK ? left : CHUNK)};
}

__device__ __forceinline__ bool aligned(const void* p) { return (unsigned long long)p % 16 == 0; }

__device__ float block_sum(float value) {
    __shared__ float parts[THREADS / 32];
    for (int step = 16; step; step /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, step);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    float total = 0.0f;
    for (int i = 0; i < THREADS / 32; ++i) total += parts[i];
    __syncthreads();
    return total;
}

extern "C" __global__ void __launch_bounds__(THREADS) squares(const Tensors t, float* partial) {
    float sum = 0.0f;
    for (int chunk = blockIdx.x; chunk < t.first[t.count]; chunk += gridDim.x) {
        Place at = find(t, chunk);
        const float* g = t.gradients[at.tensor] + at.start;
        int done = 0;
        if (aligned(g)) {
            done = at.length / 4 * 4;
            for (int i = threadIdx.x; i < at.length / 4; i += THREADS) {
                float4 v = ((const float4*)g)[i];
                sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
            }
        }
        for (int i = done + threadIdx.x; i < at.length; i += THREADS) sum += g[i] * g[i];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

struct Rates {
    float scale, rate, share, decay;
};

__device__ __forceinline__ void change(float& w, float g, float& a, const Rates& r, bool averaged) {
    w -= r.rate * (r.scale * g + r.decay * w);
    if (averaged) a = r.share < 0.5f ? a + r.share * (w - a) : w - (w - a) * (1.0f - r.share);
}

// numbers: rate, share. clip: 0 where gradients are taken as they are.
extern "C" __global__ void __launch_bounds__(THREADS) update(
    const Tensors t, const float* partial, int parts, const float* numbers, float clip, float decay) {
    Rates r{1.0f, numbers[0], numbers[1], decay};
    if (clip > 0.0f) {
        float sum = 0.0f;
        for (int i = threadIdx.x; i < parts; i += THREADS) sum += partial[i];
        float scale = clip / (sqrtf(block_sum(sum)) + 1e-6f);
        r.scale = scale >= 1.0f ? 1.0f : scale;  // NaN stays NaN
    }
    for (int chunk = blockIdx.x; chunk < t.first[t.count]; chunk += gridDim.x) {
        Place at = find(t, chunk);
        float* w = t.weights[at.tensor] + at.start;
        const float* g = t.gradients[at.tensor] + at.start;
        bool averaged = t.averages[at.tensor] != nullptr;
        float* a = averaged ? t.averages[at.tensor] + at.start : nullptr;
        int done = 0;
        if (aligned(w) && aligned(g) && aligned(a)) {
            done = at.length / 4 * 4;
            for (int i = threadIdx.x; i < at.length / 4; i += THREADS) {
                float4 x = ((float4*)w)[i], y = ((const float4*)g)[i];
                float4 z = averaged ? ((float4*)a)[i] : make_float4(0, 0, 0, 0);
                change(x.x, y.x, z.x, r, averaged);
                change(x.y, y.y, z.y, r, averaged);
                change(x.z, y.z, z.z, r, averaged);
                change(x.w, y.w, z.w, r, averaged);
                ((float4*)w)[i] = x;
                if (averaged) ((float4*)a)[i] = z;
            }
        }
        for (int i = done + threadIdx.x; i < at.length; i += THREADS) {
            float x = w[i], z = averaged ? a[i] : 0.0f;
            change(x, g[i], z, r, averaged);
            w[i] = x;
            if (averaged) a[i] = z;
        }
    }
}
