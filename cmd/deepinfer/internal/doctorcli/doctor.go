// Package doctorcli implements `deepinfer doctor`: what this machine offers to an inference engine, what is missing, and what to do about it.
//
// Command is the way in, called by cmd/deepinfer. Every check is a function from the machine to a Finding; none of them changes anything.
package doctorcli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/sys/cpu"
	"golang.org/x/sys/unix"
)

// Level grades a finding.
type Level string

// Levels: ok needs nothing, note is worth knowing, missing has a Fix.
const (
	OK      Level = "ok"
	Note    Level = "note"
	Missing Level = "missing"
)

// Finding is one line of the report.
type Finding struct {
	Area  string `json:"area"` // "cpu", "memory", "compiler", "backend", "device", "kernel"
	What  string `json:"what"`
	Level Level  `json:"level"`
	Found string `json:"found"`
	Fix   string `json:"fix,omitempty"`
}

// Command builds the cobra command. backends reports what the plugin catalogue found, one finding per backend.
func Command(backends func(dirs []string) []Finding, defaultDirs []string) *cobra.Command {
	var asJSON bool
	dirs := defaultDirs
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this machine offers, what is missing and how to fix it",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			report := append(Machine(), backends(dirs)...)
			if asJSON {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(report)
			}
			return Print(cmd.OutOrStdout(), report)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().StringSliceVar(&dirs, "dir", defaultDirs, "directories that hold backend manifests")
	return cmd
}

// Print writes the report as a table and a closing line that counts what needs attention.
func Print(w io.Writer, report []Finding) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	bad := 0
	for _, f := range report {
		mark := map[Level]string{OK: "ok", Note: "note", Missing: "MISSING"}[f.Level]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", mark, f.Area, f.What, f.Found)
		if f.Fix != "" {
			fmt.Fprintf(t, "\t\t\t-> %s\n", f.Fix)
		}
		if f.Level == Missing {
			bad++
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if bad == 0 {
		_, err := fmt.Fprintln(w, "\nNothing is missing.")
		return err
	}
	_, err := fmt.Fprintf(w, "\n%d missing; the pure-Go backend \"ref\" runs without any of them.\n", bad)
	return err
}

// Machine inspects CPU, memory, kernel, compilers and devices.
func Machine() []Finding {
	return append(append(append(processor(), memory()...), compilers()...), devices()...)
}

func processor() []Finding {
	cores := Finding{Area: "cpu", What: "cores", Level: OK, Found: fmt.Sprintf("%d usable of %d, %s/%s", runtime.GOMAXPROCS(0), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH)}
	var have []string
	add := func(name string, ok bool) {
		if ok {
			have = append(have, name)
		}
	}
	features := Finding{Area: "cpu", What: "vector units", Level: OK}
	switch runtime.GOARCH {
	case "amd64":
		add("avx2", cpu.X86.HasAVX2)
		add("fma", cpu.X86.HasFMA)
		add("avx512", cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VL)
		add("avx512-vnni", cpu.X86.HasAVX512VNNI)
		add("avx512-bf16", cpu.X86.HasAVX512BF16)
		add("amx-bf16", cpu.X86.HasAMXBF16)
		add("amx-int8", cpu.X86.HasAMXInt8)
		if !cpu.X86.HasAVX2 {
			features.Level, features.Fix = Note, "no AVX2: backends use their generic code, several times slower"
		}
	case "arm64":
		add("neon", cpu.ARM64.HasASIMD)
		add("dotprod", cpu.ARM64.HasASIMDDP)
		add("sve", cpu.ARM64.HasSVE)
	default:
		features.Level, features.Fix = Note, "no tuned code for this architecture: generic code runs"
	}
	features.Found = strings.Join(have, " ")
	if features.Found == "" {
		features.Found = "none known"
	}
	return []Finding{cores, features}
}

func memory() []Finding {
	var out []Finding
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err == nil {
		total, avail := uint64(info.Totalram)*uint64(info.Unit), available()
		f := Finding{Area: "memory", What: "RAM", Level: OK, Found: fmt.Sprintf("%s, %s available", gib(total), gib(avail))}
		if avail > 0 && avail < 1<<30 {
			f.Level, f.Fix = Note, "under 1 GiB is free: the demo model needs about 300 MiB"
		}
		out = append(out, f)
	}
	if raw, err := os.ReadFile("/sys/fs/cgroup/memory.max"); err == nil {
		if n, err := strconv.ParseUint(strings.TrimSpace(string(raw)), 10, 64); err == nil {
			out = append(out, Finding{Area: "memory", What: "cgroup limit", Level: Note, Found: gib(n)})
		}
	}
	fd, err := unix.MemfdCreate("doctor", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	f := Finding{Area: "kernel", What: "sealed memfd", Level: OK, Found: "works"}
	if err != nil {
		f.Level, f.Found, f.Fix = Missing, err.Error(), "backends in worker processes need memfd_create (Linux 3.17 or later, not blocked by seccomp)"
	} else {
		unix.Close(fd)
	}
	return append(out, f)
}

func available() uint64 {
	raw, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(raw)) {
		if rest, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			n, _ := strconv.ParseUint(strings.Fields(rest)[0], 10, 64)
			return n << 10
		}
	}
	return 0
}

func gib(n uint64) string { return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30)) }

func compilers() []Finding {
	var out []Finding
	for _, c := range []struct{ name, fix string }{
		{"g++", "install g++ and run `make build` again to get the cpu backend; without it `ref` serves"},
		{"make", "install make"},
	} {
		f := Finding{Area: "compiler", What: c.name, Level: OK}
		path, err := exec.LookPath(c.name)
		if err != nil {
			f.Level, f.Found, f.Fix = Missing, "not found", c.fix
		} else {
			f.Found = path
			if v, err := exec.Command(path, "--version").Output(); err == nil {
				f.Found += ": " + strings.SplitN(string(v), "\n", 2)[0]
			}
		}
		out = append(out, f)
	}
	return out
}

// devices looks for accelerators by their device nodes; no driver is loaded.
func devices() []Finding {
	var out []Finding
	for _, d := range []struct{ what, pattern, backend string }{
		{"NVIDIA GPU", "/dev/nvidia[0-9]*", "sm100"},
		{"Ascend NPU", "/dev/davinci[0-9]*", "ascend950"},
	} {
		nodes, _ := filepath.Glob(d.pattern)
		f := Finding{Area: "device", What: d.what, Level: Note, Found: "none"}
		if len(nodes) > 0 {
			f.Found = fmt.Sprintf("%d (%s); backend %q is not part of this build", len(nodes), strings.Join(nodes, " "), d.backend)
		}
		out = append(out, f)
	}
	return out
}
