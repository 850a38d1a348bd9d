/* di_backend_v1.h: the contract between deepinfer's worker and a hardware backend.
 *
 * A backend is one shared object that exports exactly one symbol, di_backend_v1. The call fills a di_backend with
 * tables of functions; every op call passes one pointer to an argument struct. Rules (design: docs/backend-guide.md):
 *
 *  1. C11, LP64, little endian, fixed-width integers only. No bool, enum, long, bit-field.
 *  2. Every struct begins with uint32_t size, set by the caller from sizeof. Append only; a reader treats bytes past
 *     size as zero. Exceptions, frozen for good: di_str, di_tensor, and the array elements di_sampling, di_bias. Tables: absent or NULL = not implemented.
 *  3. layout.golden lists offset and size of each field; a C test and a Go test both compare with it.
 *  4. Strings are pointer + length, borrowed for the call. Who allocates frees. Error text goes into a caller buffer.
 *  5. No stdout, no signal handlers, no exit or abort on bad input, no fork, no thread left after close.
 *  6. All memory that ops touch was given by memory->alloc of the same device, or is host memory named in a di_weight.
 *  7. Arrays of a di_batch live in device memory too. Row counts are host values.
 *
 * Letters: T rows (tokens) of a step, S sequences, H hidden, D head dim, R rotary dims, Hq query heads, E experts,
 * K experts per token, V vocabulary, C Engram columns, hc residual streams, I inner width.
 */
#ifndef DI_BACKEND_V1_H
#define DI_BACKEND_V1_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DI_ABI_MAJOR 1u
#define DI_ABI_MINOR 0u
#define DI_OP_SET 1u

/* Return codes: the gRPC sixteen. 0 = ok. */
typedef uint32_t di_rc;
#define DI_OK 0u
#define DI_INVALID_ARGUMENT 3u
#define DI_NOT_FOUND 5u
#define DI_RESOURCE_EXHAUSTED 8u
#define DI_FAILED_PRECONDITION 9u
#define DI_UNIMPLEMENTED 12u
#define DI_INTERNAL 13u
#define DI_UNAVAILABLE 14u

/* What an error spoils; decides recovery. */
#define DI_SCOPE_STEP 1u    /* this submission is bad: fail those requests, go on */
#define DI_SCOPE_PROGRAM 2u /* program unusable: recompile */
#define DI_SCOPE_DEVICE 3u  /* context poisoned: restart the worker */
#define DI_SCOPE_HOST 4u    /* driver or memory missing: mark unavailable */

/* Element types of a di_tensor. */
#define DI_F32 1u
#define DI_F64 2u  /* only backends that report DI_CAP_F64 (the exact rung of `ref`) */
#define DI_BF16 3u
#define DI_I32 4u
#define DI_I64 5u
#define DI_U8 6u   /* packed records, see DI_REC_* */

/* On-disk weight formats of a di_weight. */
#define DI_W_BF16 1u     /* [n,k] */
#define DI_W_F32 2u      /* [n,k] */
#define DI_W_FP8_TILE 3u /* E4M3 [n,k]; scale UE8M0 [ceil(n/tile), ceil(k/tile)] */
#define DI_W_FP8_ROW 4u  /* E4M3 [n,k]; scale UE8M0 [n, ceil(k/tile)] (Engram tables, tile 32) */
#define DI_W_MXFP4 5u    /* E2M1, two per byte, low nibble first [n,k/2]; scale UE8M0 [n, k/32] */
#define DI_W_I64 6u      /* [n,k] (V4 tid2eid) */
#define DI_W_I32 7u      /* [n,k] (token map) */

/* Record formats of packed rows. bytes(D, R) below; every record starts on a byte boundary. */
#define DI_REC_NONE 0u
#define DI_REC_A8_32 1u      /* D E4M3, then D/32 UE8M0:                              D + D/32      (V4.1 window) */
#define DI_REC_A8_64_ROPE 2u /* D-R E4M3, R BF16, ceil((D-R)/64) UE8M0, zero pad to 8 (V4 window and compressed) */
#define DI_REC_F4E4_16 3u    /* D E2M1 packed, then D/16 E4M3 scales:                 D/2 + D/16    (V4.1 compressed) */
#define DI_REC_F4E8_32 4u    /* D E2M1 packed, then D/32 UE8M0:                       D/2 + D/32    (index keys) */

typedef struct { const char *ptr; uint64_t len; } di_str; /* frozen */

/* A dense array, row-major, innermost dimension contiguous. dim[0..rank-1] are used. stride is the distance in
 * elements between rows of dim[0] (0 = product of the other dims). data NULL = operand absent. Frozen, 64 bytes. */
typedef struct {
  void *data;
  uint32_t dtype, rank;
  int64_t dim[4];
  int64_t stride;
  uint64_t reserved;
} di_tensor;

typedef struct {
  uint32_t size, code, scope;
  int32_t native; /* vendor error number */
  char *msg;      /* caller's buffer, UTF-8, not terminated */
  uint64_t msg_cap, msg_len;
} di_fail;

typedef struct di_ext { uint32_t size, kind; const struct di_ext *next; } di_ext;

/* A weight as it lies in the checkpoint. parts > 1: a stack of equal matrices (experts), part p at data[p], scale[p].
 * The host keeps the bytes mapped until release. prepared belongs to the backend (packed copy, device copy). */
typedef struct {
  uint32_t size, format;
  uint32_t tile, parts;
  int64_t n, k; /* rows (outputs) and columns (inputs) of one part */
  const void *const *data;
  const void *const *scale; /* NULL for plain formats */
  void *prepared;
  di_str name;
} di_weight;

/* Rows of one step in one row domain, grouped by sequence in order. Positions are absolute.
 * A sequence s owns rows seq_first[s] .. seq_first[s]+seq_rows[s]-1, whose positions are consecutive. */
typedef struct {
  uint32_t size;
  int32_t rows, seqs;
  int32_t table_width;        /* entries of one block-table row */
  const int32_t *token;       /* [rows] raw token id */
  const int32_t *pos;         /* [rows] */
  const int32_t *seq;         /* [rows] sequence of the row */
  const int32_t *flag;        /* [rows] bit 0: image span */
  const int32_t *image_row;   /* [rows] row of the step's image embeddings, -1 = none */
  const int32_t *seq_first;   /* [seqs] */
  const int32_t *seq_rows;    /* [seqs] may be 0 */
  const int32_t *seq_slot;    /* [seqs] state slot */
  const int32_t *seq_low;     /* [seqs] no window reaches below this position (bounded replay; 0 = normal). Rows below it see only themselves and enter no ring */
  const int32_t *seq_write;   /* [seqs] global rows of positions below this one are read, never written (replayed prefix) */
  const int32_t *seq_table;   /* [seqs, table_width] granule ids; entry i covers positions 128i .. 128i+127 */
  const int32_t *hist;        /* [seqs, n_hist] raw ids before the sequence's first row, nearest last */
  const int32_t *hist_flag;   /* [seqs, n_hist] bit 0: image span; bit 1: no such position */
  int32_t n_hist, pad;
} di_batch;

/* A strided region of packed rows: the window ring or compressor tail of a state slot, or one layer's part of a KV granule.
 * Row j of unit u starts at base + u*unit_stride + offset (+ j*row_bytes when interleaved). */
typedef struct {
  uint32_t size, format;     /* DI_REC_*; DI_REC_NONE for tails (floats of the accumulation type) */
  void *base;
  int64_t unit_stride, offset;
  int32_t rows;              /* ring capacity, tail rows, or entries per granule (128/ratio) */
  int32_t row_bytes;
  int32_t ratio;             /* tokens per entry of a cache; 1 for rings */
  int32_t dim, rope;         /* D and R of the stored vector */
  int32_t planar;            /* 1: all values of the unit, then all scale bytes (index keys); 0: value, scale per row */
} di_region;

/* ---- GEMM ------------------------------------------------------------------------------------------------- */

/* y[t,n] = sum_k act(x)[t,k] * w[n,k] (+ bias[n]), accumulated in FP32 in an order that depends on k alone; BF16 y is rounded once.
 * act_group g > 0: x passes the A8 quantiser in groups of g along k (spec 2.6). groups G > 1: block diagonal, x [T,G*k], w [G*n',k] with
 * w.n = G*n', y [T,G*n']. x BF16; y BF16, F32 or F64. */
typedef struct {
  uint32_t size, act_group, groups, pad;
  const di_weight *w;
  di_tensor x, y, bias;
} di_gemm_args;

#define DI_GROUPED_CONTIGUOUS 0u /* x [R,k] sorted by expert, offs I32 [E+1] */
#define DI_GROUPED_MASKED 1u     /* x [E,M,k], offs I32 [E] = valid rows of each expert */
typedef struct {
  uint32_t size, act_group, layout, pad;
  const di_weight *w; /* parts = E */
  di_tensor x, y, offs;
} di_gemm_grouped_args;

/* logits[l,v] = sum_k x[rows[l],k] * w[v,k], not rounded. rows absent = identity. */
typedef struct {
  uint32_t size, pad;
  const di_weight *w;
  di_tensor x, y, rows;
} di_head_args;

/* ---- Attention --------------------------------------------------------------------------------------------- */

/* Commits window records: for each row with pos >= seq_low, ring[slot][pos mod ring.rows] = rec[row]; when a sequence has more rows than the
 * ring, only the last ring.rows count. Runs after attend of the same layer. rec U8 [T, row_bytes]. */
typedef struct {
  uint32_t size, pad;
  const di_batch *batch;
  di_region ring; /* embedded, its own size field set */
  di_tensor rec;
} di_kv_store_args;

/* Pools groups of `ratio` tokens into latents (spec 4.5, appendix A).
 * ratio 1: lat = RMS(k; norm) for each row; k BF16 [T,D]; s, tail, ape absent.
 * ratio r > 1: k and s F32 (accumulation type) [T, c*D], c = overlap ? 2 : 1; s += ape[pos mod r] first. Rows (k,s) of each token go to
 * tail[slot][pos mod tail.rows] (2*c*D floats, k then s). When pos+1 is a multiple of r the group ends at this row and
 * lat[row] = RMS(bf16(softmax-pooled)); earlier rows come from this step or the tail. Overlap: previous group's first half, this group's second half.
 * Rows that end no group leave lat[row] = 0. lat BF16 [T,D], before rotation.
 * cache.format != NONE: each latent is rotated at position pos+1-r, quantised to cache.format and written as entry (pos+1)/r-1, unless pos < seq_write. */
typedef struct {
  uint32_t size, ratio, overlap, pad;
  const di_batch *batch;
  di_tensor k, s, ape, norm; /* norm F32 [D], ape F32 [r,c*D] */
  double eps;
  di_region tail, cache;
  di_tensor freq; /* F32 [R/2] rotation speeds */
  di_tensor lat;
} di_compress_args;

/* Index keys: k BF16 [T,Di] (normalised) of rows that end a group of cache.ratio tokens: rotate at pos+1-r, hadamard != 0: Hadamard and
 * BF16 rounding, quantise to cache.format, write as entry (pos+1)/r-1 unless pos < seq_write. */
typedef struct {
  uint32_t size, hadamard;
  const di_batch *batch;
  di_tensor k, freq;
  di_region cache;
} di_index_key_args;

#define DI_SCORE_F32 0u  /* sum_h w*scale * max(0, q.k), accumulation type */
#define DI_SCORE_BF16 1u /* production: four BF16 chains (spec 4.6), no scale */
/* Scores the visible entries j < (pos+1)/ratio of the row's sequence and keeps the top_k highest; ties to the lower position; -0 = 0.
 * q BF16 [T,Hi,Di] quantised; w BF16 [T,Hi]. cand_in I32 [T,Bmax]: only entries of these blocks (ascending, -1 ends the list); absent = all.
 * sel I32 [T,top_k]: ascending positions, then -1. cand_out (optional) I32 [T,cand_topk]: blocks of cand_block entries by maximum score, the newest
 * block pinned, the cand_topk best, ascending, then -1. */
typedef struct {
  uint32_t size, top_k, mode, cand_block;
  const di_batch *batch;
  di_tensor q, w;
  double scale;
  di_region cache;
  di_tensor cand_in, cand_out, sel;
} di_index_select_args;

#define DI_ATTEND_BF16 0u /* out = bf16(rotate_conj(bf16(o)))                 */
#define DI_ATTEND_A8 1u   /* out = A8(rotate_conj(o), 32) straight from FP32 (production) */
/* Sparse attention (spec 4.7, 4.8). Keys of the row at position p: window positions max(p-window+1, seq_low, 0)..p (rows below seq_low: p alone), those of this
 * step from rec, earlier ones from the ring; then the cache entries of sel (ascending) or, with all_visible, entries j < (p+1)/ratio.
 * The order of sums is: window ascending, then entries ascending. K = V. sink F32 [Hq], one unscaled logit, no value.
 * q BF16 [T,Hq,D] rotated; rec U8 [T,row_bytes]; out BF16 [T,Hq,D], rotated back at p with freq. P is rounded to BF16 before the value product,
 * the denominator is not. */
typedef struct {
  uint32_t size, window, out_mode, all_visible;
  const di_batch *batch;
  di_tensor q, rec, sel, sink, freq;
  double scale;
  di_region ring, cache; /* cache.format NONE: window only */
  di_tensor out;
} di_attend_args;
/* attend_block takes the same struct: rows of a sequence are one draft block whose first row sits at position a; every row sees ring positions
 * max(0,a-window)..a-1 and all rows of the block (spec 8.3). */

/* ---- AllToAll ---------------------------------------------------------------------------------------------- */

/* Groups (row, slot) pairs by expert: xg[i] = x[order[i]/K], order I32 [T*K] sorted by expert then by pair index, offs I32 [E+1].
 * group NULL = one rank. */
typedef struct {
  uint32_t size, experts;
  void *group;
  const di_batch *batch;
  di_tensor x, ids; /* BF16 [T,H], I32 [T,K] */
  di_tensor xg, order, offs;
} di_dispatch_args;

#define DI_COMBINE_EXPERT 0u /* FP32 sum over the slots by ascending expert id, then shared (R41) */
#define DI_COMBINE_SLOT 1u   /* shared first, then slots 0..K-1 (production) */
/* y[t] = bf16(sum over slots of yg[i] with order[i] = t*K+slot, plus shared[t]). shared may be absent. */
typedef struct {
  uint32_t size, mode;
  void *group;
  const di_batch *batch;
  di_tensor yg, order, ids, shared, y;
} di_combine_args;

/* y[t, c*k .. ] = bf16(dequantised row ids[t,c] of w). ids I32 [T,C]; y BF16 [T,C*k]. */
typedef struct {
  uint32_t size, pad;
  void *group;
  const di_weight *w;
  di_tensor ids, y;
} di_gather_rows_args;

/* all_gather: y [ranks*rows, ...] = x of each rank in order. all_reduce: y = sum over ranks in rank order, FP32. group NULL: copy. */
typedef struct {
  uint32_t size, pad;
  void *group;
  di_tensor x, y;
} di_collective_args;

/* ---- Vector ------------------------------------------------------------------------------------------------ */

/* y[t,c,:] = row token[t] of w, or image[image_row[t]] where >= 0, for each of the hc streams. y BF16 [T,hc,H]. */
typedef struct {
  uint32_t size, pad;
  const di_batch *batch;
  const di_weight *w;
  di_tensor image, y;
} di_embed_args;

/* y = bf16(w * x * rsqrt(mean(x^2)+eps)) over the last dim; w F32 [n] or absent (= 1). x, y BF16. */
typedef struct { uint32_t size, pad; di_tensor x, w, y; double eps; } di_rms_norm_args;

/* Rotates interleaved pairs of the last 2*len(freq) dims at the row's position (ratio r > 1: at pos+1-r): angle = fp32(pos)*fp32(freq) rounded to FP32, cos and
 * sin accurate and rounded to FP32, result rounded to BF16. conj: the inverse. x, y BF16 [T,D] or [T,Hq,D]; y may equal x. */
typedef struct { uint32_t size, conj, ratio, pad; const di_batch *batch; di_tensor x, freq, y; } di_rope_args;

/* Packs (y U8 records) or simulates storage (y BF16: dequantised values) of x BF16 over the last dim; rope: R of DI_REC_A8_64_ROPE. */
typedef struct { uint32_t size, format, rope, pad; di_tensor x, y; } di_quantize_args;

/* Walsh-Hadamard of the last dim (Sylvester order), times n^-0.5, rounded to BF16. */
typedef struct { uint32_t size, pad; di_tensor x, y; } di_hadamard_args;

/* mHC mixes (spec 3.3). h BF16 [T,hc,H]; fn F32 [hc*(hc+2), hc*H]; base, scale F32. pre, post F32 [T,hc]; comb F32 [T,hc*hc] (row i source, column j).
 * head_only: fn [hc, hc*H], only pre is written, scale [1] (V4 HyperHead). tf32: fn rounded to 10 mantissa bits first. */
typedef struct {
  uint32_t size, iters, head_only, tf32;
  di_tensor h, fn, base, scale, pre, post, comb;
  double hc_eps, eps;
} di_mhc_mix_args;
/* x = bf16(sum_c pre[c] h[c]), pre absent = (1,0,..). x BF16 [T,H]. */
typedef struct { uint32_t size, pad; di_tensor h, pre, x; } di_mhc_collapse_args;
/* out[j] = bf16(post[j]*y + sum_i comb[i][j]*h[i]); out may equal h. */
typedef struct { uint32_t size, pad; di_tensor y, h, post, comb, out; } di_mhc_expand_args;
/* x = bf16(mean over streams of h) (DSpark taps). x rows may be strided. */
typedef struct { uint32_t size, pad; di_tensor h, x; } di_mhc_mean_args;

/* Router (spec 5.1, 5.2). x BF16 [T,H]; w BF16 [E,H] (values x as F32); bias, bias_vl F32 [E] (bias_vl for rows with flag bit 0, absent = bias);
 * tid2eid weight I64 [V,K]: ids come from the table. ids I32 [T,K] in selection order; weights F32 [T,K] = sc/(sum+denom_eps)*scale; counts I32 [E] optional histogram. */
typedef struct {
  uint32_t size, top_k;
  const di_batch *batch;
  const di_weight *w, *tid2eid;
  di_tensor x, bias, bias_vl, ids, weights, counts;
  double scale, denom_eps, temp;
} di_router_args;

#define DI_ACT_BF16 0u /* y = bf16(a) */
#define DI_ACT_A8 1u   /* y = A8(a, act_group) straight from FP32 (production) */
/* a = silu(min(g,limit)) * clamp(u,-limit,limit) [* weights[order[t]]]; limit 0 = none. g, u, y BF16 [R,I]; weights F32 flat, order I32 [R], both or neither. */
typedef struct {
  uint32_t size, out_mode, act_group, pad;
  di_tensor g, u, weights, order, y;
  double limit;
} di_swiglu_args;

/* Engram rows (spec 6.4). map I32 weight [V]; prime, mult I64; heads columns per order. ids I32 [T,C]. */
typedef struct {
  uint32_t size, heads, pad_id, pad;
  const di_batch *batch;
  const di_weight *map;
  di_tensor prime, mult, ids;
} di_engram_hash_args;
/* Gated injection (spec 6.5): kv BF16 [T,(hc+1)*H]; q_weight, k_weight F32 [hc,H]; out may equal h; gate F32 [T,hc] optional. Rows with flag bit 0 have gate 0. */
typedef struct {
  uint32_t size, pad;
  const di_batch *batch;
  di_tensor h, kv, q_weight, k_weight, out, gate;
  double eps;
} di_engram_mix_args;

/* logits[s] = base[s] + head . embed[prev[s]]; e = that embed row. prev I32 [S]; base, logits F32 [S,V]; e BF16 [S,rank]. */
typedef struct { uint32_t size, pad; const di_weight *embed, *head; di_tensor prev, base, logits, e; } di_markov_args;
/* conf[s] = w . [x[s]; e[s]], F32 [S]. */
typedef struct { uint32_t size, pad; const di_weight *w; di_tensor x, e, conf; } di_confidence_args;

/* How one logit row is drawn. Frozen at 48 bytes (array element). */
typedef struct {
  uint64_t seed;
  int32_t pos;      /* absolute index of the token being drawn */
  uint32_t salt;    /* choice index */
  float temperature; /* 0 = argmax, lowest id wins */
  float top_p;      /* 0 or 1 = off */
  float min_p;      /* 0 = off */
  int32_t top_k;    /* 0 = off */
  int32_t forced;   /* >= 0: not drawn, the row scores this id; mask and biases have no effect */
  int32_t mask;     /* row of the mask table, from 1; 0 = none */
  int32_t bias_first, bias_count; /* entries of the bias table for this row */
} di_sampling;
/* One change of one logit z. id >= 0: z[id] += add; add = -inf blocks the id. id < 0: z[~id] is divided by add where positive and multiplied by it
 * elsewhere (repetition penalty), add > 0. Frozen at 8 bytes (array element). */
typedef struct {
  int32_t id;
  float add;
} di_bias;
/* spec serving 8.2, 8.3. z = logits; the row's biases in their order, in the type of logits; ids whose mask bit is 0 become -inf; then the filters temperature, top-k,
 * top-p, min-p and Gumbel-max with Philox-4x32-10 keyed by (seed; id/4, pos, purpose 0, salt), or the argmax of z. A row with mask or biases that leave no
 * id above -inf gets id -1, which is not an error.
 * logits F32 [L,V]; params: L di_sampling in device memory; ids I32 [L]; logprob F32 [L] (from the logits before any change; -inf for id -1); top_ids I32,
 * top_logprob F32 [L,N] of the same logits, best first, ties to the lower id.
 * masks: mask_rows rows of mask_words words in device memory, bit i%32 of word i/32 = id i is allowed, 32*mask_words >= V, bits from V on mean nothing.
 * biases: bias_rows entries in device memory. Both may be NULL with 0 rows. */
typedef struct {
  uint32_t size, top_n;
  const di_sampling *params;
  di_tensor logits, ids, logprob, top_ids, top_logprob;
  const uint32_t *masks;
  const di_bias *biases;
  uint32_t mask_rows, mask_words;
  uint32_t bias_rows, pad;
} di_sample_args;
/* accepted[s] = length of the longest prefix of draft[s,:n[s]] equal to ids rows first[s].. ; I32. */
typedef struct { uint32_t size, pad; di_tensor ids, draft, count, first, accepted; } di_verify_args;

/* y[i] = x[index[i]] by rows of dim[0] (index absent = identity). Same dtype. */
typedef struct { uint32_t size, pad; di_tensor x, index, y; } di_copy_args;
/* y = x converted (BF16 <-> F32 <-> F64, RNE). */
typedef struct { uint32_t size, pad; di_tensor x, y; } di_cast_args;
/* y = bf16(a + b). */
typedef struct { uint32_t size, pad; di_tensor a, b, y; } di_add_args;
/* y = bf16(gelu_erf(x)). */
typedef struct { uint32_t size, pad; di_tensor x, y; } di_gelu_args;

/* Full bidirectional attention over one image (spec 7.3): qkv BF16 [N,3*d], N = grid_h*grid_w; 2-D rotate-half RoPE with freq F32 [hd/4];
 * out BF16 [N,d]; probabilities not rounded. */
typedef struct { uint32_t size, heads, grid_h, grid_w; di_tensor qkv, freq, out; } di_vision_attend_args;
/* Zero-padded r x r cells, channel-major (spec 7.4): x BF16 [gh*gw,d] -> y BF16 [nh*nw, d*r*r]. */
typedef struct { uint32_t size, r, grid_h, grid_w; di_tensor x, y; } di_vision_merge_args;

/* ---- tables ------------------------------------------------------------------------------------------------ */

typedef struct di_device di_device; /* opaque, the backend's */
typedef struct di_queue di_queue;   /* opaque, the backend's; one thread at a time */

#define DI_OP(name, args) di_rc (*name)(di_device *, di_queue *, const args *, di_fail *)

typedef struct {
  uint32_t size, pad;
  di_rc (*prepare)(di_device *, di_weight *, di_fail *); /* optional: packs or copies once; sets w->prepared */
  di_rc (*release)(di_device *, di_weight *, di_fail *);
  DI_OP(gemm, di_gemm_args);
  DI_OP(gemm_grouped, di_gemm_grouped_args);
  DI_OP(head, di_head_args);
} di_gemm_fns;

typedef struct {
  uint32_t size, pad;
  DI_OP(kv_store, di_kv_store_args);
  DI_OP(compress, di_compress_args);
  DI_OP(index_key, di_index_key_args);
  DI_OP(index_select, di_index_select_args);
  DI_OP(attend, di_attend_args);
  DI_OP(attend_block, di_attend_args);
} di_attention_fns;

typedef struct {
  uint32_t size, pad;
  DI_OP(dispatch, di_dispatch_args);
  DI_OP(combine, di_combine_args);
  DI_OP(gather_rows, di_gather_rows_args);
  DI_OP(all_gather, di_collective_args);
  DI_OP(all_reduce, di_collective_args);
} di_alltoall_fns;

typedef struct {
  uint32_t size, pad;
  DI_OP(embed, di_embed_args);
  DI_OP(rms_norm, di_rms_norm_args);
  DI_OP(rope, di_rope_args);
  DI_OP(quantize, di_quantize_args);
  DI_OP(hadamard, di_hadamard_args);
  DI_OP(mhc_mix, di_mhc_mix_args);
  DI_OP(mhc_collapse, di_mhc_collapse_args);
  DI_OP(mhc_expand, di_mhc_expand_args);
  DI_OP(mhc_mean, di_mhc_mean_args);
  DI_OP(router, di_router_args);
  DI_OP(swiglu, di_swiglu_args);
  DI_OP(engram_hash, di_engram_hash_args);
  DI_OP(engram_mix, di_engram_mix_args);
  DI_OP(markov, di_markov_args);
  DI_OP(confidence, di_confidence_args);
  DI_OP(sample, di_sample_args);
  DI_OP(verify, di_verify_args);
  DI_OP(copy, di_copy_args);
  DI_OP(cast, di_cast_args);
  DI_OP(add, di_add_args);
  DI_OP(gelu, di_gelu_args);
  DI_OP(vision_attend, di_vision_attend_args);
  DI_OP(vision_merge, di_vision_merge_args);
} di_vector_fns;

#define DI_CAP_BATCH_INVARIANT 1u /* claims level d1 */
#define DI_CAP_HOST_MEMORY 2u     /* alloc returns memory the host may read and write */
#define DI_CAP_F64 4u             /* accepts DI_F64 accumulation tensors */

typedef struct {
  uint32_t size, caps;
  char name[64];     /* zero padded: "cpu avx2" */
  uint64_t memory_bytes, memory_free;
  uint32_t cores, numa_node;
  char features[256]; /* space separated facts */
} di_device_info;

typedef struct {
  uint32_t size, threads; /* 0 = backend's choice */
  di_str config;          /* JSON object of the configuration's `config` block */
} di_open_args;

typedef struct {
  uint32_t size, pad;
  di_rc (*count)(uint32_t *n, di_fail *);
  di_rc (*info)(uint32_t index, di_device_info *, di_fail *);
  di_rc (*open)(uint32_t index, const di_open_args *, di_device **, di_fail *);
  di_rc (*close)(di_device *, di_fail *);
} di_device_fns;

#define DI_COPY_H2D 1u
#define DI_COPY_D2H 2u
#define DI_COPY_D2D 3u
typedef struct {
  uint32_t size, pad;
  di_rc (*alloc)(di_device *, uint64_t bytes, void **, di_fail *); /* 64-byte aligned, zeroed */
  di_rc (*free)(di_device *, void *, di_fail *);
  di_rc (*copy)(di_device *, di_queue *, void *dst, const void *src, uint64_t bytes, uint32_t kind, di_fail *); /* ordered in the queue; D2H is complete after queue sync */
  di_rc (*fill)(di_device *, di_queue *, void *dst, uint32_t byte, uint64_t bytes, di_fail *);
} di_memory_fns;

typedef struct {
  uint32_t size, pad;
  di_rc (*create)(di_device *, di_queue **, di_fail *);
  di_rc (*destroy)(di_device *, di_queue *, di_fail *);
  di_rc (*sync)(di_device *, di_queue *, di_fail *); /* waits for all work of the queue */
} di_queue_fns;

typedef struct {
  uint32_t size, minor;
  di_str plugin_dir, scratch_dir;
  int32_t log_fd;     /* one JSON object per line; -1 = none */
  uint32_t log_level; /* 0 error .. 3 debug */
  const di_ext *ext;
} di_host;

typedef struct {
  uint32_t size, minor;
  di_str name, version;
  uint32_t op_set, pad;
  const di_device_fns *device;
  const di_memory_fns *memory;
  const di_queue_fns *queue;
  const di_gemm_fns *gemm;
  const di_attention_fns *attention;
  const di_alltoall_fns *alltoall;
  const di_vector_fns *vector; /* may be NULL or have holes: the SDK's portable ops serve those, said at start-up */
  const di_ext *ext;
} di_backend;

/* The one exported symbol. No device work here. */
di_rc di_backend_v1(const di_host *host, di_backend *out, di_fail *fail);

#ifdef __cplusplus
}
#endif
#endif
