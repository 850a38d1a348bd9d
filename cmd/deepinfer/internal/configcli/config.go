package configcli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/deepinfer-go/deepinfer/conf"
)

// Error is a configuration that cannot be used. Its text has one problem a line.
type Error struct{ Err error }

// Error lists the problems, one a line.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap gives the joined *conf.Problem values.
func (e *Error) Unwrap() error { return e.Err }

// ExitCode is 2: usage or configuration error.
func (e *Error) ExitCode() int { return 2 }

// Load is conf.Load with the process environment and *Error as its error, for every command that takes -c FILE.
func Load(file string, flags map[string]any) (*conf.Config, error) {
	c, err := conf.Load(file, os.Environ(), flags)
	if err != nil {
		return nil, &Error{err}
	}
	return c, nil
}

// Command returns `config` with its subcommands.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check a configuration file, or show every value and where it comes from",
		Args:  cobra.NoArgs,
	}
	cmd.AddCommand(check(), show())
	return cmd
}

func check() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "List every problem of a file; exit code 2 when there is one",
		Long: `Reads FILE and the DEEPINFER_ environment variables as serve would and lists every problem at once as
file:line:column: text. Settings that are valid and without effect in this build are warnings.`,
		Args:          cobra.ExactArgs(1),
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := Load(args[0], nil)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			warnings := c.Warnings()
			for _, w := range warnings {
				fmt.Fprintln(out, "warning:", w)
			}
			fmt.Fprintf(out, "%s: ok", args[0])
			switch len(warnings) {
			case 0:
			case 1:
				fmt.Fprint(out, ", 1 warning")
			default:
				fmt.Fprintf(out, ", %d warnings", len(warnings))
			}
			_, err = fmt.Fprintln(out)
			return err
		},
	}
}

func show() *cobra.Command {
	var file, format string
	cmd := &cobra.Command{
		Use:   "show [-c FILE]",
		Short: "Print the whole configuration, each value with its origin; secrets are masked",
		Args:  cobra.NoArgs,

		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if format != "hcl" && format != "json" {
				return &Error{fmt.Errorf("--format %q: want hcl or json", format)}
			}
			c, err := Load(file, nil)
			if err != nil {
				return err
			}
			return c.Show(cmd.OutOrStdout(), format)
		},
	}
	cmd.Flags().StringVarP(&file, "config", "c", "", "configuration file; default: none")
	cmd.Flags().StringVar(&format, "format", "hcl", "hcl or json")
	return cmd
}
