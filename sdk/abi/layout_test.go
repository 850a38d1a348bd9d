package abi

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"testing"
)

// layout.golden is written from the Go side by
//
//	go test ./sdk/abi -run TestGoLayout -rewrite
//
// and holds, for every struct, its name and size, then each field with offset and size. A released line never changes; new fields come at the end.
var rewrite = flag.Bool("rewrite", false, "write layout.golden from the Go structs")

// mirrors pairs the C structs with their Go mirrors, in the order of the header.
var mirrors = []struct {
	c string
	g any
}{
	{"di_str", Str{}}, {"di_tensor", Tensor{}}, {"di_fail", Fail{}}, {"di_ext", Ext{}}, {"di_weight", Weight{}}, {"di_batch", Batch{}}, {"di_region", Region{}},
	{"di_gemm_args", GEMMArgs{}}, {"di_gemm_grouped_args", GEMMGroupedArgs{}}, {"di_head_args", HeadArgs{}},
	{"di_kv_store_args", KVStoreArgs{}}, {"di_compress_args", CompressArgs{}}, {"di_index_key_args", IndexKeyArgs{}}, {"di_index_select_args", IndexSelectArgs{}}, {"di_attend_args", AttendArgs{}},
	{"di_dispatch_args", DispatchArgs{}}, {"di_combine_args", CombineArgs{}}, {"di_gather_rows_args", GatherRowsArgs{}}, {"di_collective_args", CollectiveArgs{}},
	{"di_embed_args", EmbedArgs{}}, {"di_rms_norm_args", RMSNormArgs{}}, {"di_rope_args", RopeArgs{}}, {"di_quantize_args", QuantizeArgs{}}, {"di_hadamard_args", HadamardArgs{}},
	{"di_mhc_mix_args", MHCMixArgs{}}, {"di_mhc_collapse_args", MHCCollapseArgs{}}, {"di_mhc_expand_args", MHCExpandArgs{}}, {"di_mhc_mean_args", MHCMeanArgs{}},
	{"di_router_args", RouterArgs{}}, {"di_swiglu_args", SwigluArgs{}}, {"di_engram_hash_args", EngramHashArgs{}}, {"di_engram_mix_args", EngramMixArgs{}},
	{"di_markov_args", MarkovArgs{}}, {"di_confidence_args", ConfidenceArgs{}}, {"di_sampling", Sampling{}}, {"di_bias", Bias{}}, {"di_sample_args", SampleArgs{}}, {"di_verify_args", VerifyArgs{}},
	{"di_copy_args", CopyArgs{}}, {"di_cast_args", CastArgs{}}, {"di_add_args", AddArgs{}}, {"di_gelu_args", GeluArgs{}}, {"di_vision_attend_args", VisionAttendArgs{}}, {"di_vision_merge_args", VisionMergeArgs{}},
	{"di_gemm_fns", GEMMFns{}}, {"di_attention_fns", AttentionFns{}}, {"di_alltoall_fns", AllToAllFns{}}, {"di_vector_fns", VectorFns{}},
	{"di_device_info", DeviceInfo{}}, {"di_open_args", OpenArgs{}}, {"di_device_fns", DeviceFns{}}, {"di_memory_fns", MemoryFns{}}, {"di_queue_fns", QueueFns{}},
	{"di_host", Host{}}, {"di_backend", Backend{}},
}

type cStruct struct {
	name   string
	fields []string
}

var (
	commentRE = regexp.MustCompile(`(?s)/\*.*?\*/`)
	structRE  = regexp.MustCompile(`(?s)typedef struct(?: di_\w+)? \{(.*?)\} (\w+);`)
	opRE      = regexp.MustCompile(`^DI_OP\((\w+),.*\)$`)
	pointerRE = regexp.MustCompile(`^di_rc \(\*(\w+)\)`)
	nameRE    = regexp.MustCompile(`(\w+)(?:\[\d+\])?$`)
	defineRE  = regexp.MustCompile(`(?m)^#define (DI_\w+) (\d+)u[ \t]*$`)
)

func header(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("di_backend_v1.h")
	if err != nil {
		t.Fatal(err)
	}
	return commentRE.ReplaceAllString(string(b), "")
}

// cStructs reads the structs of the header and the names of their fields.
func cStructs(t *testing.T) []cStruct {
	t.Helper()
	var out []cStruct
	for _, m := range structRE.FindAllStringSubmatch(header(t), -1) {
		s := cStruct{name: m[2]}
		for _, stmt := range strings.Split(m[1], ";") {
			stmt = strings.Join(strings.Fields(stmt), " ")
			if stmt == "" {
				continue
			}
			if f := opRE.FindStringSubmatch(stmt); f != nil {
				s.fields = append(s.fields, f[1])
				continue
			}
			if f := pointerRE.FindStringSubmatch(stmt); f != nil {
				s.fields = append(s.fields, f[1])
				continue
			}
			for _, d := range strings.Split(stmt, ",") {
				f := nameRE.FindStringSubmatch(d)
				if f == nil {
					t.Fatalf("%s: cannot read the field %q", s.name, stmt)
				}
				s.fields = append(s.fields, f[1])
			}
		}
		out = append(out, s)
	}
	return out
}

// plain makes C and Go spellings comparable: DI_REC_A8_64_ROPE and RecA8x64Rope are both reca864rope.
func plain(s string) string {
	s = strings.ToLower(strings.ReplaceAll(s, "_", ""))
	return regexp.MustCompile(`(\d)x(\d)`).ReplaceAllString(s, "$1$2")
}

// goLayout is the layout of the Go mirrors under C names.
func goLayout(t *testing.T) string {
	t.Helper()
	list := cStructs(t)
	if len(list) != len(mirrors) {
		t.Fatalf("the header has %d structs, %d have a Go mirror", len(list), len(mirrors))
	}
	var b strings.Builder
	for i, m := range mirrors {
		c, g := list[i], reflect.TypeOf(m.g)
		if c.name != m.c {
			t.Fatalf("struct %d of the header is %s, the mirror %s stands for %s", i, c.name, g, m.c)
		}
		if g.NumField() != len(c.fields) {
			t.Fatalf("%s has %d fields, its mirror %s %d", c.name, len(c.fields), g, g.NumField())
		}
		fmt.Fprintf(&b, "%s %d\n", c.name, g.Size())
		for k, name := range c.fields {
			f := g.Field(k)
			if plain(f.Name) != plain(name) {
				t.Fatalf("field %d of %s is %s, of its mirror %s", k, c.name, name, f.Name)
			}
			fmt.Fprintf(&b, "  %s %d %d\n", name, f.Offset, f.Type.Size())
		}
	}
	return b.String()
}

func golden(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("layout.golden")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	where := ""
	for i := 0; i < max(len(g), len(w)); i++ {
		a, b := "(nothing)", "(nothing)"
		if i < len(g) {
			a = g[i]
		}
		if i < len(w) {
			b = w[i]
		}
		if !strings.HasPrefix(b, " ") {
			where = b
		}
		if a != b {
			return fmt.Sprintf("in %s: %q, layout.golden has %q", where, a, b)
		}
	}
	return ""
}

func TestGoLayoutEqualsTheGolden(t *testing.T) {
	got := goLayout(t)
	if *rewrite {
		if err := os.WriteFile("layout.golden", []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if d := firstDifference(got, golden(t)); d != "" {
		t.Fatal(d)
	}
}

// The C layout is taken from a program that prints sizeof and offsetof, compiled as C11 and as C++17.
func TestCLayoutEqualsTheGolden(t *testing.T) {
	var src bytes.Buffer
	src.WriteString("#include <stddef.h>\n#include <stdio.h>\n#include \"di_backend_v1.h\"\nint main(void) {\n")
	for _, s := range cStructs(t) {
		fmt.Fprintf(&src, "  printf(\"%s %%zu\\n\", sizeof(%s));\n", s.name, s.name)
		for _, f := range s.fields {
			fmt.Fprintf(&src, "  printf(\"  %s %%zu %%zu\\n\", offsetof(%s, %s), sizeof(((%s *)0)->%s));\n", f, s.name, f, s.name, f)
		}
	}
	src.WriteString("  return 0;\n}\n")
	for _, c := range []struct{ compiler, language, standard string }{{"gcc", "c", "c11"}, {"g++", "c++", "c++17"}} {
		t.Run(c.standard, func(t *testing.T) {
			if _, err := exec.LookPath(c.compiler); err != nil {
				t.Skipf("%s is not installed", c.compiler)
			}
			dir := t.TempDir()
			file, bin := filepath.Join(dir, "layout."+map[string]string{"c": "c", "c++": "cc"}[c.language]), filepath.Join(dir, "layout")
			if err := os.WriteFile(file, src.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command(c.compiler, "-std="+c.standard, "-Wall", "-Wextra", "-Werror", "-pedantic", "-I.", "-o", bin, file).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			out, err := exec.Command(bin).Output()
			if err != nil {
				t.Fatal(err)
			}
			if d := firstDifference(string(out), golden(t)); d != "" {
				t.Fatal(d)
			}
		})
	}
}

func TestStructsFollowTheSizeRule(t *testing.T) {
	frozen := map[string]int{"di_str": 16, "di_tensor": 64, "di_sampling": 48, "di_bias": 8}
	for _, s := range cStructs(t) {
		if _, ok := frozen[s.name]; !ok && s.fields[0] != "size" {
			t.Errorf("%s begins with %s, must begin with size", s.name, s.fields[0])
		}
	}
	for _, m := range mirrors {
		g := reflect.TypeOf(m.g)
		if n, ok := frozen[m.c]; ok && int(g.Size()) != n {
			t.Errorf("%s has %d bytes, is frozen at %d", m.c, g.Size(), n)
		}
		end := uintptr(0)
		for i := range g.NumField() {
			f := g.Field(i)
			if f.Offset != end {
				t.Errorf("%s has %d bytes of hidden padding before %s", m.c, f.Offset-end, f.Name)
			}
			end = f.Offset + f.Type.Size()
		}
		if end != g.Size() {
			t.Errorf("%s has %d bytes of hidden padding at its end", m.c, g.Size()-end)
		}
	}
}

func TestConstantsEqualTheHeader(t *testing.T) {
	want := map[string]int64{}
	for _, m := range defineRE.FindAllStringSubmatch(header(t), -1) {
		v, err := strconv.ParseInt(m[2], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		want[plain(strings.TrimPrefix(m[1], "DI_"))] = v
	}
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "consts.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	info := &types.Info{Defs: map[*ast.Ident]types.Object{}}
	if _, err := (&types.Config{Importer: importer.Default()}).Check("abi", fset, []*ast.File{f}, info); err != nil {
		t.Fatal(err)
	}
	got := map[string]int64{}
	for id, o := range info.Defs {
		if c, ok := o.(*types.Const); ok {
			v, exact := constant.Int64Val(constant.ToInt(c.Val()))
			if !exact {
				t.Fatalf("%s is not an integer", id.Name)
			}
			got[plain(id.Name)] = v
		}
	}
	var names []string
	for n := range want {
		names = append(names, n)
	}
	for n := range got {
		if _, ok := want[n]; !ok {
			names = append(names, n)
		}
	}
	sort.Strings(names)
	for _, n := range names {
		w, inC := want[n]
		g, inGo := got[n]
		if inC != inGo || w != g {
			t.Errorf("%s: header %d (%v), consts.go %d (%v)", n, w, inC, g, inGo)
		}
	}
	if len(want) < 45 {
		t.Errorf("only %d constants were found in the header", len(want))
	}
}

func TestTensorGeometry(t *testing.T) {
	a := Of(nil, BF16, 3, 4, 5)
	if a.Width() != 20 || a.RowStride() != 20 || a.Len() != 60 || a.Present() {
		t.Errorf("dense: width %d, stride %d, len %d", a.Width(), a.RowStride(), a.Len())
	}
	a.Stride = 32
	if a.RowStride() != 32 || a.Len() != 84 {
		t.Errorf("strided: stride %d, len %d", a.RowStride(), a.Len())
	}
	if z := Of(nil, F32, 0, 4); z.Len() != 0 || len(Slice[float32](&z)) != 0 {
		t.Error("an empty tensor spans memory")
	}
}

func TestRecordBytes(t *testing.T) {
	for _, c := range []struct {
		format    uint32
		dim, rope int
		want      int
	}{{RecA8x32, 512, 64, 528}, {RecA8x64Rope, 512, 64, 584}, {RecF4E4x16, 512, 64, 288}, {RecF4E8x32, 128, 64, 68}, {RecNone, 512, 64, 0}, {99, 512, 64, 0}} {
		if got := RecordBytes(c.format, c.dim, c.rope); got != c.want {
			t.Errorf("format %d of %d values: %d bytes, want %d", c.format, c.dim, got, c.want)
		}
	}
}
