package dl

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
)

// common is the source of a complete small library; the macros before it change one thing at a time.
const common = `
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include "di_backend_v1.h"
#ifndef NAME
#define NAME "tiny"
#endif
#ifndef OPS
#define OPS DI_OP_SET
#endif
#ifndef CAPS
#define CAPS DI_CAP_HOST_MEMORY
#endif
static di_rc say(di_fail *f, uint32_t code, uint32_t scope, const char *m) {
  if (f) { f->code = code; f->scope = scope; f->native = 7; f->msg_len = strlen(m) < f->msg_cap ? strlen(m) : f->msg_cap; memcpy(f->msg, m, f->msg_len); }
  return code;
}
static di_rc count(uint32_t *n, di_fail *f) { (void)f; *n = 1; return 0; }
static di_rc info(uint32_t i, di_device_info *o, di_fail *f) {
  if (i) return say(f, DI_NOT_FOUND, DI_SCOPE_HOST, "one device only");
  o->caps = CAPS; strcpy(o->name, "tiny device"); o->memory_bytes = 4096; return 0;
}
static di_rc open_(uint32_t i, const di_open_args *a, di_device **d, di_fail *f) {
  (void)i;
#ifdef SIGNAL_AT_OPEN
  signal(SIGTERM, SIG_IGN);
#endif
  if (a->config.len) return say(f, DI_INVALID_ARGUMENT, DI_SCOPE_STEP, "no configuration is known");
  *d = malloc(1); return 0;
}
static di_rc close_(di_device *d, di_fail *f) { (void)f; free(d); return 0; }
static di_rc alloc_(di_device *d, uint64_t n, void **p, di_fail *f) { (void)d; (void)f; *p = aligned_alloc(64, (n + 63) / 64 * 64 + 64); memset(*p, 0, n); return 0; }
static di_rc free_(di_device *d, void *p, di_fail *f) { (void)d; (void)f; free(p); return 0; }
static di_rc copy_(di_device *d, di_queue *q, void *t, const void *s, uint64_t n, uint32_t k, di_fail *f) { (void)d; (void)q; (void)k; (void)f; memcpy(t, s, n); return 0; }
static di_rc qcreate(di_device *d, di_queue **q, di_fail *f) { (void)d; (void)f; *q = malloc(1); return 0; }
static di_rc qdestroy(di_device *d, di_queue *q, di_fail *f) { (void)d; (void)f; free(q); return 0; }
static di_rc qsync(di_device *d, di_queue *q, di_fail *f) { (void)d; (void)q; (void)f; return 0; }
static di_rc gemm(di_device *d, di_queue *q, const di_gemm_args *a, di_fail *f) {
  (void)d; (void)q;
  if (a->size != sizeof *a || a->w->size != sizeof *a->w) return say(f, DI_INVALID_ARGUMENT, DI_SCOPE_STEP, "sizes are not set");
  return say(f, DI_UNAVAILABLE, DI_SCOPE_DEVICE, "the device fell off");
}
#define FAIL(NAME_, ARGS) static di_rc NAME_(di_device *d, di_queue *q, const ARGS *a, di_fail *f) { (void)d; (void)q; (void)a; (void)f; return DI_INTERNAL; }
FAIL(grouped, di_gemm_grouped_args) FAIL(head, di_head_args) FAIL(kv_store, di_kv_store_args) FAIL(compress, di_compress_args) FAIL(index_key, di_index_key_args)
FAIL(index_select, di_index_select_args) FAIL(attend, di_attend_args) FAIL(dispatch, di_dispatch_args) FAIL(combine, di_combine_args) FAIL(gather, di_gather_rows_args)
static const di_device_fns device_fns = {sizeof(di_device_fns), 0, count, info, open_, close_};
static const di_memory_fns memory_fns = {sizeof(di_memory_fns), 0, alloc_, free_, copy_, 0};
static const di_queue_fns queue_fns = {sizeof(di_queue_fns), 0, qcreate, qdestroy, qsync};
static const di_gemm_fns gemm_fns = {sizeof(di_gemm_fns), 0, 0, 0, gemm, grouped, head};
#ifdef SHORT_ATTENTION
/* a library built before attend existed: its entries end with index_select, what follows is not a table */
static const di_attention_fns attention_fns = {offsetof(di_attention_fns, attend), 0, kv_store, compress, index_key, index_select, attend, 0};
#else
static const di_attention_fns attention_fns = {sizeof(di_attention_fns), 0, kv_store, compress, index_key, index_select, attend, 0};
#endif
static const di_alltoall_fns alltoall_fns = {sizeof(di_alltoall_fns), 0, dispatch, combine, gather, 0, 0};
__attribute__((visibility("default"))) di_rc ENTRY(const di_host *host, di_backend *out, di_fail *f);
di_rc ENTRY(const di_host *host, di_backend *out, di_fail *f) {
  if (host->size != sizeof *host || out->size != sizeof *out || f->size != sizeof *f) return DI_INTERNAL;
#ifdef SIGNAL_AT_ENTRY
  struct sigaction sa; memset(&sa, 0, sizeof sa); sa.sa_handler = SIG_IGN; sigaction(SIGURG, &sa, 0); sigaction(SIGINT, &sa, 0);
#endif
#ifdef REFUSE
  return say(f, DI_FAILED_PRECONDITION, DI_SCOPE_HOST, "driver 7 is needed, found 5");
#endif
#ifdef SILENT
  return DI_INTERNAL;
#endif
  static char version[64];
  snprintf(version, sizeof version, "%.*s", (int)host->plugin_dir.len, host->plugin_dir.ptr ? host->plugin_dir.ptr : "");
  out->name = (di_str){NAME, strlen(NAME)};
  out->version = (di_str){version, strlen(version) ? strlen(version) : 0};
  out->op_set = OPS; out->device = &device_fns; out->memory = &memory_fns; out->queue = &queue_fns; out->gemm = &gemm_fns;
#ifndef NO_ATTENTION
  out->attention = &attention_fns;
#endif
  out->alltoall = &alltoall_fns;
  return 0;
}
`

func compile(t *testing.T, source string, flags ...string) string {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("gcc is not installed: no library can be built")
	}
	header, err := filepath.Abs("../../abi")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	src, lib := filepath.Join(dir, "tiny.c"), filepath.Join(dir, "tiny.so")
	if err := os.WriteFile(src, []byte("#include <stddef.h>\n"+source), 0o644); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"-std=gnu11", "-shared", "-fPIC", "-fvisibility=hidden", "-I", header, "-o", lib, src}, flags...)
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return lib
}

func tiny(t *testing.T, flags ...string) string {
	return compile(t, common, append([]string{"-DENTRY=di_backend_v1"}, flags...)...)
}

func mustOpen(t *testing.T, path string) *Library {
	t.Helper()
	lib, err := Open(path, Options{PluginDir: "plugins"})
	if err != nil {
		t.Fatal(err)
	}
	return lib
}

func TestUnusableFilesAreRefusedWithWhatWasFound(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		return p
	}
	good, err := os.ReadFile(tiny(t))
	if err != nil {
		t.Fatal(err)
	}
	patched := func(name string, at int, v byte) string {
		b := append([]byte(nil), good...)
		b[at] = v
		return write(name, string(b))
	}
	foreign := byte(183) // aarch64
	if good[18] == foreign {
		foreign = 62
	}
	for name, c := range map[string]struct {
		path string
		want []string
	}{
		"missing":            {filepath.Join(dir, "none.so"), []string{"none.so", "no such file"}},
		"directory":          {dir, []string{"not a regular file"}},
		"empty":              {write("empty.so", ""), []string{"not an ELF shared object"}},
		"text":               {write("text.so", strings.Repeat("hello ", 100)), []string{"not an ELF shared object", "bad magic number"}},
		"cut":                {write("cut.so", string(good[:100])), []string{"cut.so"}},
		"other machine":      {patched("machine.so", 18, foreign), []string{"it is built for EM_", "this process runs on EM_"}},
		"32 bit":             {patched("class.so", 4, 1), []string{"class.so"}},
		"no entry":           {compile(t, "int x(void) { return 0; }"), []string{"does not export di_backend_v1", "not a deepinfer backend"}},
		"newer major":        {compile(t, common, "-DENTRY=di_backend_v2"), []string{"exports di_backend_v2", "accepts di_backend_v1 (ABI major 1)"}},
		"refusing entry":     {tiny(t, "-DREFUSE"), []string{"di_backend_v1: driver 7 is needed, found 5", "scope host", "native error 7"}},
		"silent entry":       {tiny(t, "-DSILENT"), []string{"code 13 without a message"}},
		"newer op set":       {tiny(t, "-DOPS=9"), []string{"op set 9, this release accepts 1"}},
		"empty name":         {tiny(t, `-DNAME=""`), []string{"its name has 0 bytes"}},
		"no attention":       {tiny(t, "-DNO_ATTENTION"), []string{"lacks the required functions attention.kv_store, attention.compress"}},
		"shorter table":      {tiny(t, "-DSHORT_ATTENTION"), []string{"lacks the required functions attention.attend"}},
		"unresolved symbols": {compile(t, common+"extern void nowhere(void); void call(void) { nowhere(); }\n__attribute__((visibility(\"default\"))) void (*keep)(void) = call;", "-DENTRY=di_backend_v1"), []string{"nowhere"}},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			lib, err := Open(c.path, Options{PluginDir: "plugins"})
			if err == nil {
				t.Fatalf("loaded %s", lib.Name())
			}
			for _, w := range append(c.want, "load backend "+c.path) {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%v\nlacks %q", err, w)
				}
			}
		})
	}
}

func TestOpenFromAPathAndFromADescriptor(t *testing.T) {
	path := tiny(t)
	lib := mustOpen(t, path)
	if lib.Name() != "tiny" || lib.Version() != "plugins" {
		t.Errorf("name %q, version %q (the plugin directory it was told)", lib.Name(), lib.Version())
	}
	if err := lib.Close(); err != nil {
		t.Error(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.MemfdCreate("tiny", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Skipf("memfd_create: %v", err)
	}
	f := os.NewFile(uintptr(fd), "tiny")
	if _, err := f.Write(content); err != nil {
		t.Fatal(err)
	}
	lib, err = OpenFile(f, "tiny.so", Options{PluginDir: "elsewhere"})
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if lib.Version() != "elsewhere" {
		t.Errorf("plugin directory %q", lib.Version())
	}
	infos, err := lib.Devices(context.Background())
	if err != nil || len(infos) != 1 || infos[0].Name != "tiny device" || infos[0].MemoryBytes != 4096 || !infos[0].HostMemory || len(infos[0].Missing) != 23 {
		t.Errorf("%+v, %v", infos, err)
	}
	if err := lib.Close(); err != nil {
		t.Error(err)
	}
	if _, err := lib.Devices(context.Background()); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("devices after close: %v", err)
	}
}

func TestErrorsOfTheLibraryKeepCodeScopeAndNumber(t *testing.T) {
	lib := mustOpen(t, tiny(t))
	dev, err := lib.Open(context.Background(), 0, backend.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var e *backend.Error
	data := []unsafe.Pointer{nil}
	err = dev.GEMM().GEMM(&abi.GEMMArgs{W: &abi.Weight{Data: unsafe.Pointer(&data[0])}})
	if !errors.As(err, &e) || e.Code != abi.Unavailable || e.Scope != backend.ScopeDevice || e.Native != 7 || e.Op != "gemm" || e.Msg != "the device fell off" {
		t.Errorf("gemm: %v", err)
	}
	err = dev.GEMM().Head(&abi.HeadArgs{})
	if !errors.As(err, &e) || e.Code != abi.Internal || e.Scope != backend.ScopeDevice || !strings.Contains(e.Msg, "code 13") {
		t.Errorf("a failure without details: %v", err)
	}
	err = dev.Attention().AttendBlock(&abi.AttendArgs{})
	if !errors.As(err, &e) || e.Code != abi.Unimplemented || !strings.Contains(e.Msg, "does not implement") {
		t.Errorf("an op the library lacks: %v", err)
	}
	if err := dev.Attention().Attend(nil); err == nil || !strings.Contains(err.Error(), "arguments are absent") {
		t.Errorf("nil arguments: %v", err)
	}
	if _, err := lib.Open(context.Background(), 3, backend.OpenOptions{}); !errors.As(err, &e) || e.Code != abi.NotFound {
		t.Errorf("device 3: %v", err)
	}
	if _, err := lib.Open(context.Background(), 0, backend.OpenOptions{Config: []byte("{}")}); err == nil || !strings.Contains(err.Error(), "no configuration is known") {
		t.Errorf("configuration: %v", err)
	}
	if err := lib.Close(); err == nil || !strings.Contains(err.Error(), "1 devices are still open") {
		t.Errorf("close with an open device: %v", err)
	}
	if err := errors.Join(dev.Close(), dev.Close()); err != nil {
		t.Error(err)
	}
	if err := dev.GEMM().GEMM(&abi.GEMMArgs{}); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("op after close: %v", err)
	}
	if err := errors.Join(lib.Close(), lib.Close()); err != nil {
		t.Error(err)
	}
	if _, err := lib.Open(context.Background(), 0, backend.OpenOptions{}); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("open after close: %v", err)
	}
}

func TestMissingVectorOpsAreServedOnHostMemoryAndRefusedElsewhere(t *testing.T) {
	lib := mustOpen(t, tiny(t))
	dev, err := lib.Open(context.Background(), 0, backend.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	if m := dev.Info().Missing; len(m) != 23 || m[0] != "embed" {
		t.Errorf("missing ops %v", m)
	}
	p, err := dev.Alloc(6)
	if err != nil {
		t.Fatal(err)
	}
	if err := dev.Upload(p, []byte{0x80, 0x3f, 0, 0x40, 0x40, 0x40}); err != nil { // 1, 2, 3
		t.Fatal(err)
	}
	x := abi.Of(p, abi.BF16, 1, 3)
	if err := dev.Vector().Add(&abi.AddArgs{A: x, B: x, Y: x}); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 6)
	if err := dev.Download(got, p); err != nil {
		t.Fatal(err)
	}
	if string(got) != string([]byte{0, 0x40, 0x80, 0x40, 0xc0, 0x40}) { // 2, 4, 6
		t.Errorf("1 2 3 added to itself: % x", got)
	}
	away := mustOpen(t, tiny(t, "-DCAPS=0"))
	if _, err := away.Open(context.Background(), 0, backend.OpenOptions{}); err == nil || !strings.Contains(err.Error(), "lacks the Vector ops embed, rms_norm") || !strings.Contains(err.Error(), "not host memory") {
		t.Errorf("device memory: %v", err)
	}
}

func TestReplacedSignalHandlersArePutBackAndReported(t *testing.T) {
	before := snapshot()
	same := func(t *testing.T) {
		t.Helper()
		for s, now := range snapshot() {
			if now != before[s] {
				t.Errorf("signal %d has another handler now", s)
			}
		}
	}
	t.Run("constructor", func(t *testing.T) {
		lib := mustOpen(t, compile(t, common+"__attribute__((constructor)) static void start(void) { signal(SIGHUP, SIG_IGN); }", "-DENTRY=di_backend_v1"))
		same(t)
		if r := lib.Restored(); len(r) != 1 || r[0] != "SIGHUP" {
			t.Errorf("reported %v", r)
		}
	})
	t.Run("entry", func(t *testing.T) {
		lib := mustOpen(t, tiny(t, "-DSIGNAL_AT_ENTRY"))
		same(t)
		if r := strings.Join(lib.Restored(), " "); r != "SIGINT SIGURG" {
			t.Errorf("reported %v", r)
		}
	})
	t.Run("open", func(t *testing.T) {
		lib := mustOpen(t, tiny(t, "-DSIGNAL_AT_OPEN"))
		dev, err := lib.Open(context.Background(), 0, backend.OpenOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
		same(t)
		if r := lib.Restored(); len(r) != 1 || r[0] != "SIGTERM" {
			t.Errorf("reported %v", r)
		}
	})
	t.Run("clean", func(t *testing.T) {
		if r := mustOpen(t, tiny(t)).Restored(); len(r) != 0 {
			t.Errorf("reported %v", r)
		}
	})
}
