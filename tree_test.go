package deepinfer_test

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// maxTree bounds the tree without build outputs, test data included: a clone stays quick.
const maxTree = 45e6 // bytes

// files lists what a commit of everything would hold.
func files(t *testing.T) []string {
	t.Helper()
	out, err := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		t.Skipf("not a git checkout, so the files of the tree are not known: %v", err)
	}
	var list []string
	for name := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		if info, err := os.Lstat(name); err == nil && info.Mode().IsRegular() {
			list = append(list, name)
		}
	}
	return list
}

func TestTreeIsSmall(t *testing.T) {
	var sum int64
	type large struct {
		name string
		size int64
	}
	var most []large
	for _, name := range files(t) {
		info, err := os.Stat(name)
		if err != nil {
			continue // removed meanwhile
		}
		sum += info.Size()
		if info.Size() > 1e6 {
			most = append(most, large{name, info.Size()})
		}
	}
	if sum >= maxTree {
		for _, f := range most {
			t.Logf("%9d %s", f.size, f.name)
		}
		t.Errorf("the tree has %d bytes, want less than %d", sum, int64(maxTree))
	}
}

// The patterns are written so that this file does not match itself.
var outside = []struct {
	pattern *regexp.Regexp
	reason  string
}{
	{regexp.MustCompile(`(^|[^\w./-])/(work|root|home/\w+)[/]`), "names a folder of one machine; a clone stands alone"},
	{regexp.MustCompile(`[.][.]/shared\b`), "names a folder beside the repository; a clone stands alone"},
	{regexp.MustCompile(`(proxy|sum)[.]golang[.]org|goproxy[.]\w+|pypi[.]org|pythonhosted[.]org|registry[.]npmjs[.]org|crates[.]io\b|deb[.]debian[.]org`), "names a package registry; the tools know theirs"},
}

func TestNothingPointsOutsideTheRepository(t *testing.T) {
	self, matched := "tree_test.go", false
	for _, name := range files(t) {
		if name == self || strings.HasSuffix(name, "/LICENSE") {
			matched = true
			continue
		}
		src, err := os.ReadFile(name)
		if err != nil || bytes.IndexByte(src[:min(len(src), 8000)], 0) >= 0 {
			continue // removed meanwhile, or binary
		}
		for _, o := range outside {
			if at := o.pattern.FindIndex(src); at != nil {
				t.Errorf("%s:%d: %q %s", name, 1+bytes.Count(src[:at[0]], []byte("\n")), bytes.TrimSpace(src[at[0]:at[1]]), o.reason)
			}
		}
	}
	if !matched {
		t.Errorf("%s is not in the list of files: the test looks at the wrong folder", self)
	}
}

func TestThePatternsMatchWhatTheyAreFor(t *testing.T) {
	for text, want := range map[string]bool{
		`open("/wo` + `rk/main/x")`:             true,
		"cp ../sha" + "red/x .":                 true,
		"GOPROXY=https://proxy.golang" + ".org": true,
		"see /ro" + "ot/.cache":                 true,
		"https://example.com/work/1":            false,
		"framework/worker":                      false,
		"../shared_ptr.h":                       false,
		"core/model":                            false,
	} {
		got := false
		for _, o := range outside {
			got = got || o.pattern.MatchString(text)
		}
		if got != want {
			t.Errorf("%q: matched %v, want %v", text, got, want)
		}
	}
}
