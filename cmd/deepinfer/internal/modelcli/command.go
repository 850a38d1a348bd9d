package modelcli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/deepinfer-go/deepinfer/core/model/checkpoint"
	"github.com/deepinfer-go/deepinfer/core/model/config"
)

// ExitError is an error with the exit code the process should end with: 1 for a model with problems, 2 for one that cannot be read
// or for wrong usage.
type ExitError struct {
	Code int
	Err  error
}

// Error returns the text of the wrapped error.
func (e *ExitError) Error() string { return e.Err.Error() }

// Unwrap returns the wrapped error.
func (e *ExitError) Unwrap() error { return e.Err }

// ExitCode returns Code.
func (e *ExitError) ExitCode() int { return e.Code }

// Command builds the cobra command `model` with its two subcommands.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "model",
		Short: "Look at a checkpoint directory",
		Args:  cobra.NoArgs,
	}
	cmd.AddCommand(inspectCommand(), verifyCommand())
	return cmd
}

func inspectCommand() *cobra.Command {
	var asJSON bool
	fit := FitOptions{}
	memory := ""
	cmd := &cobra.Command{
		Use:   "inspect DIR",
		Short: "Show what a model is, how large its parts are and what fits on a device",
		Long: "Show architecture, parameters, bytes of each part, cache and state sizes of the model in DIR.\n" +
			"config.json alone is enough. With --memory, also what fits on devices of that size.",
		Example: "  deepinfer model inspect ./DeepSeek-V4.1-Flash --memory 141GB --devices 4",
		Args:    directory,
		RunE: func(cmd *cobra.Command, args []string) error {
			if memory != "" {
				n, err := ParseBytes(memory)
				if err != nil {
					return &ExitError{2, fmt.Errorf("--memory: %w", err)}
				}
				fit.Memory = n
			}
			if err := fit.Validate(); err != nil {
				return &ExitError{2, err}
			}
			report, err := Inspect(args[0], fit)
			if err != nil {
				return &ExitError{2, err}
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), report)
			}
			return report.Print(cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	flags.StringVar(&memory, "memory", "", "memory of one device, for example 141GB or 80GiB")
	flags.IntVar(&fit.Devices, "devices", 1, "devices that share the weights evenly")
	flags.IntVar(&fit.ChunkRows, "chunk", 2048, "rows of the largest prefill chunk")
	flags.IntVar(&fit.Sequences, "sequences", 64, "sequences that run at the same time")
	flags.BoolVar(&fit.TablesOnDevice, "engram-on-device", false, "count the Engram tables as device memory instead of host memory")
	return cmd
}

func directory(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return &ExitError{2, fmt.Errorf("%s: want one directory, have %d arguments", cmd.CommandPath(), len(args))}
	}
	return nil
}

// Verification is the JSON form of `model verify`.
type Verification struct {
	Dir           string            `json:"dir"`
	Tensors       int               `json:"tensors"`
	Bytes         int64             `json:"bytes"`
	ValuesChecked bool              `json:"values_checked"`
	Problems      []VerifiedProblem `json:"problems"`
	Notes         []string          `json:"notes,omitempty"`
}

// VerifiedProblem is one problem of a checkpoint.
type VerifiedProblem struct {
	Kind   string `json:"kind"`
	Name   string `json:"name"`
	Detail string `json:"detail"`
}

func verifyCommand() *cobra.Command {
	var asJSON, quick bool
	cmd := &cobra.Command{
		Use:   "verify DIR",
		Short: "List everything that is wrong with the weights of a model",
		Long: "Check the checkpoint in DIR against its configuration: shards and index, every tensor by name, type and shape, every value\n" +
			"for NaN and infinity, tokenizer and Engram map. Exit code 0: no problem, 1: problems, 2: the directory cannot be read.",
		Args: directory,
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := config.Load(args[0])
			if err != nil {
				return configError(args[0], err)
			}
			ck, problems, err := checkpoint.Scan(args[0])
			if err != nil {
				return &ExitError{2, err}
			}
			defer ck.Close()
			opt := checkpoint.VerifyOptions{SkipValues: quick}
			if !asJSON {
				opt.Progress = progress(cmd.ErrOrStderr())
			}
			more, err := checkpoint.VerifyWith(cmd.Context(), ck, cfg, opt)
			if err != nil {
				return &ExitError{1, fmt.Errorf("verify %s: %w", args[0], err)}
			}
			problems = append(problems, unexplained(problems, more)...)
			v := Verification{Dir: args[0], Tensors: len(ck.Names()), Bytes: ck.Bytes(), ValuesChecked: !quick, Notes: ck.Notes(), Problems: []VerifiedProblem{}}
			for _, p := range problems {
				v.Problems = append(v.Problems, VerifiedProblem{string(p.Kind), p.Name, p.Detail})
			}
			if err := printVerification(cmd.OutOrStdout(), v, asJSON); err != nil {
				return err
			}
			if len(problems) > 0 {
				return &ExitError{1, fmt.Errorf("verify %s: %d problems (%s)", args[0], len(problems), checkpoint.Summary(problems))}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&quick, "quick", false, "leave out the scan of all values, which reads every byte")
	return cmd
}

// configError sorts errors of reading from errors of content. A broken configuration is a problem of the model, exit code 1.
func configError(dir string, err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		if info, statErr := os.Stat(dir); statErr == nil && info.IsDir() && errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w; %s is not a model directory: it has no %s", err, dir, filepath.Join(dir, "config.json"))
		}
		return &ExitError{2, err}
	}
	return &ExitError{1, err}
}

// unexplained leaves out "missing" for tensors that a problem of the files already names.
func unexplained(files, found []checkpoint.Problem) []checkpoint.Problem {
	named := map[string]bool{}
	for _, p := range files {
		named[p.Name] = true
	}
	var out []checkpoint.Problem
	for _, p := range found {
		if p.Kind != checkpoint.KindMissing || !named[p.Name] {
			out = append(out, p)
		}
	}
	return out
}

// progress writes a line for every tenth of a large scan.
func progress(w io.Writer) func(done, total int64) {
	const large = 4 << 30
	steps := make(chan int64, 1)
	steps <- 0
	return func(done, total int64) {
		if total < large {
			return
		}
		last := <-steps
		if step := done * 10 / total; step > last {
			fmt.Fprintf(w, "read %s of %s\n", formatBytes(done), formatBytes(total))
			last = step
		}
		steps <- last
	}
}

func printVerification(w io.Writer, v Verification, asJSON bool) error {
	if asJSON {
		return printJSON(w, v)
	}
	for _, p := range v.Problems {
		if _, err := fmt.Fprintf(w, "%s: %s: %s\n", p.Kind, p.Name, p.Detail); err != nil {
			return err
		}
	}
	for _, n := range v.Notes {
		if _, err := fmt.Fprintf(w, "note: %s\n", n); err != nil {
			return err
		}
	}
	values := "all values read"
	if !v.ValuesChecked {
		values = "values not read"
	}
	_, err := fmt.Fprintf(w, "%s: %d tensors, %s, %s, %d problems\n", v.Dir, v.Tensors, formatBytes(v.Bytes), values, len(v.Problems))
	return err
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
