// Command deepinfer serves DeepSeek-V4.1-Flash and V4-Flash, and runs, inspects and checks what belongs to it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/deepinfer-go/deepinfer/cmd/deepinfer/internal/app"
	"github.com/deepinfer-go/deepinfer/cmd/deepinfer/internal/configcli"
	"github.com/deepinfer-go/deepinfer/cmd/deepinfer/internal/doctorcli"
	"github.com/deepinfer-go/deepinfer/cmd/deepinfer/internal/modelcli"
	"github.com/deepinfer-go/deepinfer/cmd/deepinfer/internal/plugincli"
	"github.com/deepinfer-go/deepinfer/cmd/deepinfer/internal/recipecli"
	"github.com/deepinfer-go/deepinfer/cmd/deepinfer/internal/runcli"
	"github.com/deepinfer-go/deepinfer/cmd/deepinfer/internal/servecli"
	"github.com/deepinfer-go/deepinfer/plugins/catalog"
)

func main() { os.Exit(run(os.Args[1:])) }

// run executes a command line and returns the exit code: 0, 1 for a failure, 2 for wrong usage or configuration.
func run(args []string) (code int) {
	defer func() {
		if p := recover(); p != nil {
			at := ""
			if os.Getenv("DI_TRACE") != "" {
				at = "\n" + string(debug.Stack())
			}
			fmt.Fprintf(os.Stderr, "deepinfer: internal error: %v (version %s). Please report it; DI_TRACE=1 shows where it happened.%s\n", p, version(), at)
			code = 1
		}
	}()
	root := command()
	root.SetArgs(args)
	err := root.ExecuteContext(context.Background())
	if err == nil {
		return 0
	}
	code = 1
	var exit interface{ ExitCode() int }
	switch {
	case errors.As(err, &exit):
		code = exit.ExitCode()
	case isUsage(err):
		code = 2
	}
	fmt.Fprintf(os.Stderr, "deepinfer: %s\n", strings.TrimRight(err.Error(), "\n"))
	return code
}

// usageError marks what cobra found wrong with a command line.
type usageError struct{ error }

func (e usageError) ExitCode() int { return 2 }

// isUsage knows cobra's own messages, which have no type.
func isUsage(err error) bool {
	s := err.Error()
	for _, p := range []string{"unknown command", "unknown flag", "unknown shorthand", "accepts ", "requires at least", "requires at most", "required flag", "invalid argument", "if any flags in the group", "flag needs an argument"} {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:   "deepinfer",
		Short: "An inference engine for DeepSeek-V4.1-Flash and V4-Flash",
		Long: `deepinfer runs DeepSeek-V4.1-Flash and V4-Flash from the original checkpoint. A small demo model is built in:

  deepinfer serve     a chat page, the OpenAI API and metrics on http://127.0.0.1:8080
  deepinfer run       a chat in the terminal`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			hint := ""
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				hint = "; did you mean " + strings.Join(near, " or ") + "?"
			}
			return usageError{fmt.Errorf("unknown command %q%s (`deepinfer --help` lists them)", args[0], hint)}
		},
		RunE:                       func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceUsage:               true,
		SilenceErrors:              true,
		Version:                    version(),
		SuggestionsMinimumDistance: 2,
		CompletionOptions:          cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w; see `%s --help`", err, cmd.CommandPath())}
	})
	root.AddCommand(servecli.Command(version()), runcli.Command(), modelcli.Command(), recipecli.Command(), configcli.Command(), plugincli.Command(), doctorcli.Command(findings, app.Directories()), versionCommand())
	strict(root)
	return root
}

// strict makes a group of subcommands refuse names that it does not have, which cobra would answer with its help.
func strict(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		strict(c)
		if c.HasSubCommands() && c.Run == nil && c.RunE == nil {
			c.Args = cobra.ArbitraryArgs
			c.RunE = func(cmd *cobra.Command, args []string) error {
				if len(args) == 0 {
					return cmd.Help()
				}
				cmd.SuggestionsMinimumDistance = 2
				hint := ""
				if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
					hint = "; did you mean " + strings.Join(near, " or ") + "?"
				}
				return usageError{fmt.Errorf("unknown command %q of %s%s", args[0], cmd.CommandPath(), hint)}
			}
		}
	}
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print version, commit and Go release", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "deepinfer %s %s %s/%s\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}

// version is the module's version, and the commit where the build knows it.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	if v == "" || v == "(devel)" {
		v = "devel"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && !strings.Contains(v, s.Value[:min(12, len(s.Value))]) {
			v += "+" + s.Value[:min(12, len(s.Value))]
		}
	}
	return v
}

// findings reports what the catalogue found, for `deepinfer doctor`.
func findings(dirs []string) []doctorcli.Finding {
	out := []doctorcli.Finding{{Area: "backend", What: "ref", Level: doctorcli.OK, Found: "built in, pure Go"}}
	cpu := false
	for _, e := range catalog.Scan(dirs, catalog.Options{}) {
		f := doctorcli.Finding{Area: "backend", What: e.Name, Level: doctorcli.OK, Found: e.LibPath + " " + e.Version}
		if e.State != catalog.Usable {
			f.Level, f.Found, f.Fix = doctorcli.Missing, "refused: "+e.Reason.Error(), "build it again (`make backends`), or remove its manifest"
		}
		if f.What == "" {
			f.What = e.Dir
		}
		cpu = cpu || e.Name == "cpu"
		out = append(out, f)
	}
	if !cpu {
		out = append(out, doctorcli.Finding{Area: "backend", What: "cpu", Level: doctorcli.Missing, Found: "no library in " + strings.Join(dirs, ", "), Fix: "run `make backends` (needs g++)"})
	}
	if app.Worker() == "" {
		out = append(out, doctorcli.Finding{Area: "backend", What: "deepinfer-worker", Level: doctorcli.Missing, Found: "not beside the executable", Fix: "run `make build`: backend libraries run inside it"})
	}
	return out
}
