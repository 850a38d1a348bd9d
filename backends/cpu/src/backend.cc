// The entry point: device, memory and queue tables, and the portable Vector family under this device's lock.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "device.h"

#undef vector_ops
namespace di {
const di_vector_fns &vector_ops_f32();
const di_vector_fns &vector_ops_f64();
}  // namespace di
#undef Kernels
#undef kernels_generic
#undef kernels_avx2
extern const Kernels_f32 kernels_generic_f32, kernels_avx2_f32;
extern const Kernels_f64 kernels_generic_f64, kernels_avx2_f64;

using namespace di;

static const char kName[] = "cpu", kVersion[] = "0.1.0";
constexpr uint32_t kQueue = 0x51756575;

// ---- memory ----------------------------------------------------------------------------------------------------

constexpr uint64_t kMapBytes = 1 << 20;  // larger blocks come straight from the kernel, which zeroes pages when they are first touched

static uint64_t physical() { return uint64_t(sysconf(_SC_PHYS_PAGES)) * uint64_t(sysconf(_SC_PAGESIZE)); }

void *di_device::alloc(uint64_t bytes) {
  uint64_t n = std::max<uint64_t>(64, (bytes + 63) & ~uint64_t(63));
  bool mapped = n >= kMapBytes;
  void *p;
  if (mapped) {
    p = mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return nullptr;
  } else {
    p = std::aligned_alloc(64, n);
    if (!p) return nullptr;
    std::memset(p, 0, n);
  }
  std::lock_guard<std::mutex> l(memory_);
  blocks_[uintptr_t(p)] = {n, mapped};
  return p;
}

bool di_device::free(void *p) {
  std::lock_guard<std::mutex> l(memory_);
  auto it = blocks_.find(uintptr_t(p));
  if (it == blocks_.end()) return false;
  if (it->second.mapped) munmap(p, it->second.bytes);
  else std::free(p);
  blocks_.erase(it);
  return true;
}

int64_t di_device::room(const void *p) {
  std::lock_guard<std::mutex> l(memory_);
  auto it = blocks_.upper_bound(uintptr_t(p));
  if (it == blocks_.begin()) return -1;
  --it;
  uint64_t at = uintptr_t(p) - it->first;
  return at < it->second.bytes ? int64_t(it->second.bytes - at) : -1;
}

static void need(const void *p, const char *what) {
  if (!p) refuse("%s is NULL", what);
}

static di_rc mem_alloc(di_device *d, uint64_t bytes, void **out, di_fail *f) {
  return guard(f, [&] {
    need(d, "device");
    need(out, "result pointer");
    if (bytes > physical()) fault(DI_RESOURCE_EXHAUSTED, DI_SCOPE_HOST, "%llu bytes, the machine has %llu", (unsigned long long)bytes, (unsigned long long)physical());
    *out = d->alloc(bytes);
    if (!*out) fault(DI_RESOURCE_EXHAUSTED, DI_SCOPE_HOST, "no memory for %llu bytes", (unsigned long long)bytes);
  });
}
static di_rc mem_free(di_device *d, void *p, di_fail *f) {
  return guard(f, [&] {
    need(d, "device");
    if (p && !d->free(p)) refuse("%p was not allocated here, or freed before", p);
  });
}
static di_rc mem_copy(di_device *d, di_queue *, void *dst, const void *src, uint64_t bytes, uint32_t kind, di_fail *f) {
  return guard(f, [&] {
    need(d, "device");
    if (kind < DI_COPY_H2D || kind > DI_COPY_D2D) refuse("unknown kind %u", kind);
    if (bytes == 0) return;
    need(dst, "destination");
    need(src, "source");
    auto fits = [&](const void *p, const char *what) {
      int64_t room = d->room(p);
      if (room >= 0 && uint64_t(room) < bytes) refuse("%s of %llu bytes, its memory ends after %lld", what, (unsigned long long)bytes, (long long)room);
    };
    if (kind != DI_COPY_D2H) fits(dst, "destination");
    if (kind != DI_COPY_H2D) fits(src, "source");
    std::memmove(dst, src, size_t(bytes));
  });
}
static di_rc mem_fill(di_device *d, di_queue *, void *dst, uint32_t byte, uint64_t bytes, di_fail *f) {
  return guard(f, [&] {
    need(d, "device");
    if (bytes == 0) return;
    need(dst, "destination");
    int64_t room = d->room(dst);
    if (room >= 0 && uint64_t(room) < bytes) refuse("destination of %llu bytes, its memory ends after %lld", (unsigned long long)bytes, (long long)room);
    std::memset(dst, int(byte & 0xff), size_t(bytes));
  });
}

// ---- queue: ops run on the caller's thread, so a queue is only a token ------------------------------------------

static di_rc queue_create(di_device *d, di_queue **out, di_fail *f) {
  return guard(f, [&] {
    need(d, "device");
    need(out, "result pointer");
    *out = new di_queue{kQueue};
  });
}
static void need_queue(const di_queue *q) {
  need(q, "queue");
  if (q->magic != kQueue) refuse("%p is not a queue of this backend", static_cast<const void *>(q));
}
static di_rc queue_destroy(di_device *d, di_queue *q, di_fail *f) {
  return guard(f, [&] {
    need(d, "device");
    need_queue(q);
    q->magic = 0;
    delete q;
  });
}
static di_rc queue_sync(di_device *d, di_queue *q, di_fail *f) {
  return guard(f, [&] {
    need(d, "device");
    need_queue(q);
  });
}

// ---- device ----------------------------------------------------------------------------------------------------

static bool usable() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt");
#else
  return true;
#endif
}

static const Variant kGeneric = {"generic", &kernels_generic_f32, &kernels_generic_f64};
#if defined(__x86_64__)
static const Variant kAVX2 = {"avx2", &kernels_avx2_f32, &kernels_avx2_f64};
#endif

static const Variant *variant(const std::string &name) {
#if defined(__x86_64__)
  bool avx2 = __builtin_cpu_supports("avx2");
  if (name == "avx2") return avx2 ? &kAVX2 : nullptr;
  if (name == "auto") return avx2 ? &kAVX2 : &kGeneric;
#else
  if (name == "auto") return &kGeneric;
#endif
  return name == "generic" ? &kGeneric : nullptr;
}

struct Config { std::string cpu = "auto", accumulate = "float32"; };

// The configuration is a flat JSON object of strings.
static Config read_config(const char *p, uint64_t n) {
  std::string s(p ? p : "", p ? n : 0);
  Config c;
  size_t i = 0;
  auto space = [&] { while (i < s.size() && (s[i] == ' ' || s[i] == '\t' || s[i] == '\n' || s[i] == '\r')) i++; };
  auto bad = [&](const char *what) { refuse("config \"%.100s\": %s at byte %zu; it is a JSON object with the keys cpu (\"auto\", \"generic\", \"avx2\") and accumulate (\"float64\", \"float32\")", s.c_str(), what, i); };
  auto text = [&] {
    if (i >= s.size() || s[i] != '"') bad("a string was expected");
    size_t e = s.find('"', ++i);
    if (e == std::string::npos || s.find('\\', i) < e) bad("bad string");
    std::string t = s.substr(i, e - i);
    i = e + 1;
    return t;
  };
  space();
  if (i == s.size()) return c;
  if (s.compare(i, 4, "null") == 0) {
    i += 4;
  } else {
    if (s[i++] != '{') bad("'{' was expected");
    space();
    while (i < s.size() && s[i] != '}') {
      std::string key = text();
      space();
      if (i >= s.size() || s[i++] != ':') bad("':' was expected");
      space();
      if (key == "cpu") c.cpu = text();
      else if (key == "accumulate") c.accumulate = text();
      else bad(("unknown key " + key).c_str());
      space();
      if (i < s.size() && s[i] == ',') {
        i++;
        space();
        if (i < s.size() && s[i] == '}') bad("a key was expected");
      } else if (i < s.size() && s[i] != '}') {
        bad("',' or '}' was expected");
      }
    }
    if (i >= s.size()) bad("'}' was expected");
    i++;
  }
  space();
  if (i != s.size()) bad("text after the object");
  if (c.accumulate != "float64" && c.accumulate != "float32") refuse("config accumulate is \"%.40s\", must be \"float64\" or \"float32\"", c.accumulate.c_str());
  return c;
}

static di_rc device_count(uint32_t *n, di_fail *f) {
  return guard(f, [&] {
    need(n, "result pointer");
    *n = usable() ? 1 : 0;
  });
}

static di_rc device_info(uint32_t index, di_device_info *out, di_fail *f) {
  return guard(f, [&] {
    if (index != 0) refuse("there is no device %u, only 0", index);
    need(out, "info");
    if (out->size < 8) refuse("info has size %u: the caller must set it to sizeof", out->size);
    di_device_info d;
    std::memset(&d, 0, sizeof d);
    d.size = out->size;
    d.caps = DI_CAP_BATCH_INVARIANT | DI_CAP_HOST_MEMORY | DI_CAP_F64;
    const Variant *k = variant("auto");
    std::snprintf(d.name, sizeof d.name, "cpu %s", k->name);
    d.memory_bytes = physical();
    d.memory_free = uint64_t(sysconf(_SC_AVPHYS_PAGES)) * uint64_t(sysconf(_SC_PAGESIZE));
    if (FILE *m = std::fopen("/proc/meminfo", "re")) {
      char line[128];
      unsigned long long kib;
      while (std::fgets(line, sizeof line, m))
        if (std::sscanf(line, "MemAvailable: %llu kB", &kib) == 1) d.memory_free = kib << 10;
      std::fclose(m);
    }
    d.cores = usable_cpus();
    std::snprintf(d.features, sizeof d.features, "kernels=%s accumulate=float64,float32 packed_bytes=%lld", k->name, (long long)packed_bytes.load());
    std::memcpy(static_cast<void *>(out), &d, out->size < sizeof d ? out->size : sizeof d);
  });
}

static di_rc device_open(uint32_t index, const di_open_args *args, di_device **out, di_fail *f) {
  return guard(f, [&] {
    if (index != 0) refuse("there is no device %u, only 0", index);
    need(out, "result pointer");
    if (!usable()) fault(DI_FAILED_PRECONDITION, DI_SCOPE_HOST, "this processor lacks SSE4.2, which the library was built for");
    di_open_args a{};
    if (args) a = known(args, "args");
    if (a.threads > 1024) refuse("%u threads, must be 0 (all processors) to 1024", a.threads);
    Config c = read_config(a.config.ptr, a.config.len);
    const Variant *k = variant(c.cpu);
    if (!k) refuse("config cpu is \"%.40s\": this machine has \"auto\", \"generic\"%s", c.cpu.c_str(), variant("avx2") ? " and \"avx2\"" : "");
    unsigned threads = a.threads ? a.threads : usable_cpus();
    *out = new di_device(threads, *k, c.accumulate == "float64");
  });
}

static di_rc device_close(di_device *d, di_fail *f) {
  return guard(f, [&] {
    need(d, "device");
    delete d;
  });
}

// ---- families: each entry goes to the version that the device was opened for -------------------------------------

template <class Args>
using Fn = di_rc (*)(di_device *, di_queue *, const Args *, di_fail *);

template <auto Member>
struct Choose;
#define CHOOSE(TABLE, F32, F64)                                                                    \
  template <class Args, Fn<Args> TABLE::*Member>                                                   \
  struct Choose<Member> {                                                                          \
    static di_rc run(di_device *d, di_queue *q, const Args *a, di_fail *f) {                       \
      if (!d) return report(f, DI_INVALID_ARGUMENT, DI_SCOPE_STEP, 0, "device is NULL");   \
      return d->f64 ? (F64.*Member)(d, q, a, f) : (F32.*Member)(d, q, a, f);                       \
    }                                                                                              \
  };
CHOOSE(di_gemm_fns, gemm_fns_f32, gemm_fns_f64)
CHOOSE(di_attention_fns, attention_fns_f32, attention_fns_f64)
CHOOSE(di_alltoall_fns, alltoall_fns_f32, alltoall_fns_f64)

// The portable ops take no lock of their own.
template <class Args, Fn<Args> di_vector_fns::*Member>
struct Choose<Member> {
  static di_rc run(di_device *d, di_queue *q, const Args *a, di_fail *f) {
    if (!d) return report(f, DI_INVALID_ARGUMENT, DI_SCOPE_STEP, 0, "device is NULL");
    std::lock_guard<std::mutex> lock(d->op);
    d->arena.reset();
    return ((d->f64 ? vector_ops_f64() : vector_ops_f32()).*Member)(d, q, a, f);
  }
};

static const di_gemm_fns gemm_fns = {sizeof(di_gemm_fns), 0, prepare_weight, release_weight,
  Choose<&di_gemm_fns::gemm>::run, Choose<&di_gemm_fns::gemm_grouped>::run, Choose<&di_gemm_fns::head>::run};
static const di_attention_fns attention_fns = {sizeof(di_attention_fns), 0, Choose<&di_attention_fns::kv_store>::run, Choose<&di_attention_fns::compress>::run,
  Choose<&di_attention_fns::index_key>::run, Choose<&di_attention_fns::index_select>::run, Choose<&di_attention_fns::attend>::run, Choose<&di_attention_fns::attend_block>::run};
static const di_alltoall_fns alltoall_fns = {sizeof(di_alltoall_fns), 0, Choose<&di_alltoall_fns::dispatch>::run, Choose<&di_alltoall_fns::combine>::run,
  Choose<&di_alltoall_fns::gather_rows>::run, Choose<&di_alltoall_fns::all_gather>::run, Choose<&di_alltoall_fns::all_reduce>::run};

static di_vector_fns make_vector_fns() {
  di_vector_fns t{};
  t.size = sizeof t;
#define SET(NAME) t.NAME = Choose<&di_vector_fns::NAME>::run
  SET(embed); SET(rms_norm); SET(rope); SET(quantize); SET(hadamard); SET(mhc_mix); SET(mhc_collapse); SET(mhc_expand); SET(mhc_mean); SET(router);
  SET(swiglu); SET(engram_hash); SET(engram_mix); SET(markov); SET(confidence); SET(sample); SET(verify); SET(copy); SET(cast); SET(add); SET(gelu);
  SET(vision_attend); SET(vision_merge);
#undef SET
  return t;
}
static const di_vector_fns vector_fns = make_vector_fns();

// ---- entry -----------------------------------------------------------------------------------------------------

static const di_device_fns device_fns = {sizeof(di_device_fns), 0, device_count, device_info, device_open, device_close};
static const di_memory_fns memory_fns = {sizeof(di_memory_fns), 0, mem_alloc, mem_free, mem_copy, mem_fill};
static const di_queue_fns queue_fns = {sizeof(di_queue_fns), 0, queue_create, queue_destroy, queue_sync};

extern "C" __attribute__((visibility("default"))) di_rc di_backend_v1(const di_host *host, di_backend *out, di_fail *f) {
  return guard(f, [&] {
    known(host, "host");
    need(out, "backend");
    if (out->size < 8) refuse("backend has size %u: the caller must set it to sizeof", out->size);
    di_backend b;
    std::memset(static_cast<void *>(&b), 0, sizeof b);
    b.size = out->size;
    b.minor = DI_ABI_MINOR;
    b.name = {kName, sizeof kName - 1};
    b.version = {kVersion, sizeof kVersion - 1};
    b.op_set = DI_OP_SET;
    b.device = &device_fns;
    b.memory = &memory_fns;
    b.queue = &queue_fns;
    b.gemm = &gemm_fns;
    b.attention = &attention_fns;
    b.alltoall = &alltoall_fns;
    b.vector = &vector_fns;
    std::memcpy(static_cast<void *>(out), &b, out->size < sizeof b ? out->size : sizeof b);
  });
}
