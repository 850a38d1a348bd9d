// The exchange family for one rank, where the exchange is a permutation.
#include "device.h"

using namespace di;

namespace {

di_rc dispatch(di_device *dev, di_queue *, const di_dispatch_args *args, di_fail *f) {
  return device_op(dev, f, [&] {
    const auto a = known(args, "args");
    no_group(a.group);
    int64_t t = dim(a.ids, 0), k = dim(a.ids, 1), e = a.experts, h = dim(a.x, 1);
    shape("ids", a.ids, DI_I32, {t, k});
    shape("x", a.x, DI_BF16, {t, h});
    shape("xg", a.xg, DI_BF16, {t * k, h});
    flat("order", a.order, DI_I32, t * k);
    flat("offs", a.offs, DI_I32, e + 1);
    for (int64_t r = 0; r < t; r++)
      for (int64_t s = 0; s < k; s++) {
        int32_t id = row<int32_t>(a.ids, r)[s];
        if (id < 0 || id >= e) refuse("ids[%lld,%lld] is expert %d of %lld", (long long)r, (long long)s, id, (long long)e);
      }
    int32_t *offs = static_cast<int32_t *>(a.offs.data), *order = static_cast<int32_t *>(a.order.data), *next = dev->arena.get<int32_t>(e);
    std::fill(offs, offs + e + 1, 0);
    for (int64_t r = 0; r < t; r++)
      for (int64_t s = 0; s < k; s++) offs[row<int32_t>(a.ids, r)[s] + 1]++;
    for (int64_t i = 0; i < e; i++) offs[i + 1] += offs[i];
    std::copy(offs, offs + e, next);
    for (int64_t r = 0; r < t; r++)
      for (int64_t s = 0; s < k; s++) order[next[row<int32_t>(a.ids, r)[s]]++] = int32_t(r * k + s);
    parallel(dev, t * k, h / 8, [&](int64_t lo, int64_t hi, Arena &) {
      for (int64_t i = lo; i < hi; i++) copy_row(a.xg, i, a.x, order[i] / k);
    });
  });
}

di_rc combine(di_device *dev, di_queue *, const di_combine_args *args, di_fail *f) {
  return device_op(dev, f, [&] {
    const auto a = known(args, "args");
    no_group(a.group);
    int64_t t = dim(a.ids, 0), k = dim(a.ids, 1), h = dim(a.y, 1);
    shape("ids", a.ids, DI_I32, {t, k});
    shape("y", a.y, DI_BF16, {t, h});
    shape("yg", a.yg, DI_BF16, {t * k, h});
    flat("order", a.order, DI_I32, t * k);
    if (present(a.shared)) shape("shared", a.shared, DI_BF16, {t, h});
    if (a.mode > DI_COMBINE_SLOT) refuse("unknown mode %u", a.mode);
    if (t == 0) return;
    int32_t *inv = dev->arena.get<int32_t>(t * k);
    std::fill(inv, inv + t * k, -1);
    const int32_t *order = static_cast<const int32_t *>(a.order.data);
    for (int64_t i = 0; i < t * k; i++) {
      if (order[i] < 0 || order[i] >= t * k || inv[order[i]] >= 0) refuse("order[%lld] is %d: must be a permutation of 0 to %lld", (long long)i, order[i], (long long)(t * k - 1));
      inv[order[i]] = int32_t(i);
    }
    each(dev, t, k * h, [&](int64_t i, Arena &s) {
      real *acc = s.get<real>(h);
      int32_t *slot = s.get<int32_t>(k);
      const int32_t *ids = row<int32_t>(a.ids, i);
      auto add = [&](const uint16_t *v) {
        for (int64_t q = 0; q < h; q++) acc[q] += real(wide(v[q]));
      };
      if (a.mode == DI_COMBINE_SLOT && present(a.shared)) widen(acc, row<uint16_t>(a.shared, i), h);
      else std::fill(acc, acc + h, real(0));
      for (int64_t q = 0; q < k; q++) slot[q] = int32_t(q);
      if (a.mode == DI_COMBINE_EXPERT)  // by ascending expert id, stable
        for (int64_t q = 1; q < k; q++)
          for (int64_t p = q; p > 0 && ids[slot[p]] < ids[slot[p - 1]]; p--) std::swap(slot[p], slot[p - 1]);
      for (int64_t q = 0; q < k; q++) add(row<uint16_t>(a.yg, inv[i * k + slot[q]]));
      if (a.mode == DI_COMBINE_EXPERT && present(a.shared)) add(row<uint16_t>(a.shared, i));
      narrow(row<uint16_t>(a.y, i), acc, h);
    });
  });
}

di_rc gather_rows(di_device *dev, di_queue *, const di_gather_rows_args *args, di_fail *f) {
  return device_op(dev, f, [&] {
    const auto a = known(args, "args");
    no_group(a.group);
    di_weight w = weight("w", a.w);
    int64_t t = dim(a.ids, 0), n = dim(a.ids, 1), k = w.k;
    shape("ids", a.ids, DI_I32, {t, n});
    shape("y", a.y, DI_BF16, {t, n * k});
    for (int64_t r = 0; r < t; r++)
      for (int64_t i = 0; i < n; i++) {
        int32_t id = row<int32_t>(a.ids, r)[i];
        if (id < 0 || id >= w.n) refuse("ids[%lld,%lld] is row %d of %lld", (long long)r, (long long)i, id, (long long)w.n);
      }
    each(dev, t, 2 * n * k, [&](int64_t r, Arena &s) {
      float *v = s.get<float>(k);
      for (int64_t i = 0; i < n; i++) {
        decode_row(v, w, 0, row<int32_t>(a.ids, r)[i]);
        narrow(row<uint16_t>(a.y, r) + i * k, v, k);
      }
    });
  });
}

di_rc copy_all(di_device *dev, const di_collective_args *args, di_fail *f) {
  return device_op(dev, f, [&] {
    const auto a = known(args, "args");
    no_group(a.group);
    same_shape("x", a.x, "y", a.y);
    for (int64_t i = 0; i < a.x.dim[0]; i++) copy_row(a.y, i, a.x, i);
  });
}
di_rc all_gather(di_device *dev, di_queue *, const di_collective_args *args, di_fail *f) { return copy_all(dev, args, f); }
di_rc all_reduce(di_device *dev, di_queue *, const di_collective_args *args, di_fail *f) { return copy_all(dev, args, f); }

}  // namespace

const di_alltoall_fns SUMS(alltoall_fns) = {sizeof(di_alltoall_fns), 0, dispatch, combine, gather_rows, all_gather, all_reduce};
