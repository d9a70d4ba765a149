package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dozehq/doze/client"
)

// sshSuffix ends the names of sandboxes for clients of SSH, so that a pattern in their
// configuration means all sandboxes and nothing else.
const sshSuffix = ".doze"

// sshOptions have a client trust the host. The platform has proved itself by TLS, and the
// connection leads through it.
var sshOptions = []string{"StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR"}

func (a *app) ssh() *cobra.Command {
	var proxy, config bool
	cmd := &cobra.Command{
		Use: "ssh NAME [ARGUMENT…]", Short: "Connect to a sandbox by SSH",
		Long: `Connect to a sandbox with the ssh program of this computer. What comes after NAME
goes to ssh as it is: a command, or options such as -L 8000:localhost:8000.

With --proxy, doze connects standard input and output to the SSH server of the
sandbox: it is a ProxyCommand. So editors, scp, sftp, rsync and git work, too.
--config prints what they need in ~/.ssh/config. The name of a sandbox is
NAME.doze there.

SSH asks for no password: your key of doze is the credential. A connection
wakes the sandbox, and keeps it awake until no byte has passed for 15 minutes.`,
		Example: "  doze ssh web\n  doze ssh web -L 8000:localhost:8000\n  doze ssh --config >> ~/.ssh/config && scp notes.txt web.doze:",
		Args:    takes(0, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case config && (proxy || len(args) > 0):
				return usagef("--config takes neither a NAME nor --proxy")
			case config:
				return a.printSSHConfig()
			case len(args) == 0:
				return usagef("%s needs the NAME of a sandbox", cmd.CommandPath())
			case proxy && len(args) > 1:
				return usagef("--proxy takes nothing after NAME")
			case !proxy:
				return a.runSSH(cmd.Context(), strings.TrimSuffix(args[0], sshSuffix), args[1:])
			}
			agent, err := a.enter(cmd.Context(), strings.TrimSuffix(args[0], sshSuffix))
			if err != nil {
				return err
			}
			conn, err := agent.SSH(cmd.Context())
			if err != nil {
				return err
			}
			return a.joinInput(cmd.Context(), conn)
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false) // what comes after NAME is for ssh
	f.BoolVar(&proxy, "proxy", false, "connect standard input and output, as a ProxyCommand")
	f.BoolVar(&config, "config", false, "print a part of ~/.ssh/config")
	return cmd
}

// proxyCommand connects to the sandbox that %n or name stands for.
func proxyCommand(name string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	return strings.ReplaceAll(quote(self), "%", "%%") + " ssh --proxy " + name, nil
}

func (a *app) printSSHConfig() error {
	command, err := proxyCommand("%n")
	if err != nil {
		return err
	}
	lines := []string{"Host *" + sshSuffix, "  ProxyCommand " + command}
	for _, option := range sshOptions {
		lines = append(lines, "  "+strings.Replace(option, "=", " ", 1))
	}
	return copyOut(a.out, strings.Join(lines, "\n")+"\n")
}

// runSSH runs the program of this computer, and returns how it ended. The sandbox is
// asked for first, since the error of a ProxyCommand is hard to read.
func (a *app) runSSH(ctx context.Context, name string, args []string) error {
	if _, err := a.enter(ctx, name); err != nil {
		return err
	}
	program, err := exec.LookPath("ssh")
	if err != nil {
		return errors.New("this computer has no ssh: install it (Debian: openssh-client), or use doze shell and doze exec")
	}
	command, err := proxyCommand(quote(name))
	if err != nil {
		return err
	}
	all := []string{"-o", "ProxyCommand=" + command}
	for _, option := range sshOptions {
		all = append(all, "-o", option)
	}
	c := exec.CommandContext(ctx, program, append(append(all, name+sshSuffix), args...)...) //nolint:gosec // G204: what the user asks for
	c.Stdin, c.Stdout, c.Stderr = a.in, a.out, a.err
	err = c.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
		return exitError(exit.ExitCode())
	}
	return err
}

// joinInput copies standard input and output until the other end is gone, or ctx ends.
func (a *app) joinInput(ctx context.Context, conn client.PortConn) error {
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	go func() { // ends with the input or the program
		if _, err := io.Copy(conn, a.in); err != nil || conn.CloseWrite() != nil {
			_ = conn.Close()
		}
	}()
	if _, err := io.Copy(a.out, conn); err != nil && ctx.Err() == nil {
		return fmt.Errorf("the connection to the sandbox broke: %w", err)
	}
	return nil
}
