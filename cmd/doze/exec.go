package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

// stopTimeout bounds the attempt to stop a command that nobody waits for any
// more.
const stopTimeout = 5 * time.Second

// execution is what exec was asked to do.
type execution struct {
	run         client.Command
	envs        []string
	detach      bool
	interactive bool // standard input is passed on, also from a terminal
	tty         bool
	timeout     time.Duration
}

func (a *app) exec() *cobra.Command {
	var e execution
	cmd := &cobra.Command{
		Use:   "exec NAME COMMAND [ARGUMENT…]",
		Short: "Run a command in a sandbox",
		Long: `Run a command in a sandbox. doze prints its output as it arrives and exits with
its exit code, or with 128 plus the signal that ended it. A single argument is
shell text. Several arguments are one command and are passed unchanged. Flags
come before NAME, or between NAME and --. An interrupt stops the command.

The command gets standard input if that is a file or a pipe. Use </dev/null in a
loop that reads its own input. With -i, it gets what you type, too. With -t, it
runs in a terminal: -it is for shells, editors and debuggers. A detached command
has no input.`,
		Example: `  doze exec web uname -a
  doze exec web 'ls /tmp | wc -l'
  doze exec -it web bash
  doze exec -w /app -e CI=1 web npm test
  tar c app | doze exec web tar x -C /srv`,
		Args: takes(1, -1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			name, command, err := a.commandLine(cmd, args)
			if err != nil || command == nil {
				return err
			}
			if e.run.Env, err = a.envMap(e.envs); err != nil {
				return err
			}
			if err := e.check(a.terminal() != nil); err != nil {
				return err
			}
			if e.run.KeepAlive {
				seconds := int(e.timeout / time.Second) // 0: no end
				e.run.Timeout = &seconds
			}
			e.run.Command = shellText(command)
			agent, err := a.enter(cmd.Context(), name)
			switch {
			case err != nil:
				return err
			case e.detach:
				return a.detached(cmd.Context(), agent, e.run)
			case e.tty:
				return a.inTerminal(cmd.Context(), agent, e)
			}
			e.run.Input = a.input(e.interactive)
			return a.attached(cmd.Context(), agent, e.run, e.timeout)
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false) // what comes after NAME is the command's
	f.StringVarP(&e.run.WorkingDir, "workdir", "w", "", "working `directory`")
	f.StringArrayVarP(&e.envs, "env", "e", nil, "environment variable, `NAME[=value]`; without =value, copied from your shell; repeatable")
	f.BoolVarP(&e.detach, "detach", "d", false, "print the process name and return at once")
	f.BoolVarP(&e.interactive, "interactive", "i", false, "pass standard input on, also from a terminal")
	f.BoolVarP(&e.tty, "tty", "t", false, "run the command in a terminal")
	f.BoolVar(&e.run.KeepAlive, "keep-alive", false, "keep the sandbox awake while the command runs")
	f.DurationVar(&e.timeout, "timeout", 0, "stop the command after this `time`, such as 90s or 10m")
	return cmd
}

// check refuses flags that do not go together.
func (e *execution) check(typed bool) error {
	switch {
	case e.timeout < 0 || e.timeout > 0 && e.timeout < time.Second:
		return usagef("--timeout must be at least 1s")
	case e.detach && e.timeout > 0 && !e.run.KeepAlive:
		return usagef("--timeout of a detached command needs --keep-alive")
	case e.detach && (e.tty || e.interactive):
		return usagef("a detached command has neither input nor a terminal: leave out -i and -t")
	case e.tty && e.run.KeepAlive:
		return usagef("the terminal keeps the sandbox awake: leave out --keep-alive")
	case e.tty && e.interactive && !typed:
		return usagef("standard input is not a terminal: leave out -t")
	}
	return nil
}

// commandLine returns the name of a sandbox and the command for it. Flags between both
// are those of cmd. The command is nil after a call for help.
func (a *app) commandLine(cmd *cobra.Command, args []string) (name string, command []string, err error) {
	name, command = args[0], args[1:]
	if len(command) > 0 && strings.HasPrefix(command[0], "-") {
		if err := cmd.Flags().Parse(command); err != nil {
			return "", nil, cmd.FlagErrorFunc()(cmd, err)
		}
		if help, _ := cmd.Flags().GetBool("help"); help {
			return "", nil, cmd.Help()
		}
		if err := checkFormat(a.format); err != nil {
			return "", nil, err
		}
		command = cmd.Flags().Args()
	}
	if len(command) == 0 {
		return "", nil, usagef("%s needs a command", cmd.CommandPath())
	}
	return name, command, nil
}

// inTerminal runs a command in a terminal in the sandbox.
func (a *app) inTerminal(ctx context.Context, agent *client.Agent, e execution) error {
	if e.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, e.timeout, timeoutError(e.timeout))
		defer cancel()
	}
	s := client.Screen{Session: rand.Text(), Command: e.run.Command, Env: e.run.Env, WorkingDir: e.run.WorkingDir}
	err := a.interact(ctx, e.interactive, s, agent.RunTerminal)
	if late := context.Cause(ctx); errors.Is(late, errTooLong) {
		return late
	}
	return err
}

// shellText makes the text for a shell. One argument is that already.
func shellText(args []string) string {
	if len(args) == 1 {
		return args[0]
	}
	quoted := make([]string, len(args))
	for i, s := range args {
		quoted[i] = quote(s)
	}
	return strings.Join(quoted, " ")
}

// plain are the characters that no shell touches.
const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:,@%+"

func quote(s string) string {
	if s != "" && strings.Trim(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func (a *app) detached(ctx context.Context, agent *client.Agent, run client.Command) error {
	p, err := agent.Start(ctx, run)
	switch {
	case err != nil:
		return err
	case a.whole():
		return a.printWhole(p)
	default:
		return copyOut(a.out, printable(p.Name)+"\n")
	}
}

// errTooLong is the cause of the end of a command that reached its timeout, and of the
// error that says so.
var errTooLong = errors.New("the command reached its timeout")

// timeoutError is errTooLong in the words of a user.
type timeoutError time.Duration

func (d timeoutError) Error() string {
	return fmt.Sprintf("the command ran for longer than %v and was stopped", time.Duration(d))
}

func (d timeoutError) Unwrap() error { return errTooLong }

// attached runs a command to its end, or to ours.
func (a *app) attached(ctx context.Context, agent *client.Agent, run client.Command, timeout time.Duration) error {
	run.Name = "exec-" + strings.ToLower(rand.Text()) // to stop it by
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, errTooLong)
		defer cancel()
	}
	p, err := agent.Run(ctx, run, a.print)
	if ctx.Err() != nil {
		err = a.stop(context.WithoutCancel(ctx), agent, run.Name, context.Cause(ctx), timeout)
	} else if half, ok := errors.AsType[*client.InputError](err); ok {
		// To it, a part would look like the whole.
		err = a.stop(ctx, agent, run.Name, fmt.Errorf("the command was stopped: %w", half), timeout)
	}
	if err != nil {
		return err
	}
	if a.whole() {
		if err := a.printWhole(p); err != nil {
			return err
		}
	}
	return a.exitOf(p.ExitCode, p.Signal)
}

// input is what a command gets to read: what somebody types only if that is wanted, who
// would miss the terminal around it.
func (a *app) input(typed bool) io.Reader {
	if !typed && a.terminal() != nil {
		return nil
	}
	return a.in
}

// exitOf returns how a command ended, as a shell would.
func (a *app) exitOf(code, signal int) error {
	switch {
	case code == 0:
		return nil
	case code < 0 && signal > 0 && signal < exitSignal:
		a.say(fmt.Sprintf("doze: the command was ended by signal %d%s\n", signal, signalName(signal)))
		return exitError(exitSignal + signal)
	case code < 0: // the agent of an older platform does not say which
		a.say("doze: the command was ended by a signal\n")
	}
	return exitError(max(code&0xff, exitFailed)) // what a process can exit with
}

// signals are the usual ones as sandboxes number them, whatever system this is.
var signals = map[int]string{
	1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL",
	11: "SIGSEGV", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM",
}

func signalName(n int) string {
	if name, ok := signals[n]; ok {
		return ", " + name
	}
	return ""
}

// print passes output on, unless the answer is printed whole at the end.
func (a *app) print(from client.Channel, data string) error {
	switch {
	case a.whole():
		return nil
	case from == client.Stdout:
		return copyOut(a.out, data)
	default:
		return copyOut(a.err, data)
	}
}

// stop ends a command that we gave up on, and returns why.
func (a *app) stop(ctx context.Context, agent *client.Agent, name string, why error, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	_, err := agent.Stop(ctx, name)
	if doze.Public(err).Kind == doze.NotFound {
		err = nil // it ended just now
	}
	if errors.Is(why, errTooLong) {
		why = timeoutError(timeout)
	}
	if err != nil {
		return fmt.Errorf("the command may still run: %w", err)
	}
	return why
}
