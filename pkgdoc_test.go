package deepinfer_test

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// Every package says once what it is for.
func TestEveryPackageHasOnePackageComment(t *testing.T) {
	for _, p := range allPackages(t) {
		if len(p.GoFiles) == 0 {
			continue // tests only
		}
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		var with []string
		for _, f := range p.GoFiles {
			file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, f), nil, parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			text := file.Doc.Text()
			if text == "" || strings.HasPrefix(text, "Code generated") {
				continue
			}
			with = append(with, f)
			if want := "Package " + file.Name.Name + " "; file.Name.Name != "main" && !strings.HasPrefix(text, want) {
				t.Errorf("%s/%s: the package comment starts with %q, want %q", name, f, first(text), want)
			}
		}
		switch len(with) {
		case 0:
			t.Errorf("%s has no package comment; write it in doc.go: purpose, main type, who calls it, concurrency rule", name)
		case 1:
		default:
			t.Errorf("%s has a package comment in each of %s; keep one", name, strings.Join(with, ", "))
		}
	}
}

func first(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}
