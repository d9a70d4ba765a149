package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

const (
	keyMax       = 4096                    // bytes of a key that is read
	localAddress = "http://127.0.0.1:7080" // where dozed listens, unless told otherwise
)

// settings is the file that login writes.
type settings struct {
	Address   string `json:"address"`
	Key       string `json:"key"`
	Workspace string `json:"workspace,omitempty"`
}

func (s settings) config() client.Config {
	return client.Config{Address: s.Address, Key: s.Key, Workspace: s.Workspace}
}

// settings returns those of the file, with the environment over them.
func (a *app) settings() (s settings, err error) {
	b, err := os.ReadFile(a.config)
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) && a.config != "" {
		return s, fmt.Errorf("read %s: %w", a.config, err)
	}
	s.Address = cmp.Or(a.getenv("DOZE_ADDRESS"), s.Address)
	s.Key = cmp.Or(a.getenv("DOZE_KEY"), s.Key)
	s.Workspace = cmp.Or(a.getenv("DOZE_WORKSPACE"), s.Workspace)
	return s, nil
}

// save replaces the file in one step. Only its owner can read it.
func (a *app) save(s settings) error {
	if a.config == "" {
		return errors.New("this host has no configuration directory: set DOZE_ADDRESS, DOZE_KEY and DOZE_WORKSPACE instead")
	}
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	dir := filepath.Dir(a.config)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "config-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), a.config)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // it may hold the key
	}
	return err
}

func (a *app) login() *cobra.Command {
	var in settings
	var data string
	cmd := &cobra.Command{
		Use:   "login",
		Short: "Store a server address and an API key",
		Long: `Store a server address and an API key.

The key comes from --key, from --data (which also has the address), or from
standard input. doze tests the key before storing it. DOZE_ADDRESS, DOZE_KEY and
DOZE_WORKSPACE override the stored values.`,
		Example: "  doze login --address https://doze.example.com < key\n  doze login --data /var/lib/doze",
		Args:    takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if in.Key != "" && data != "" {
				return usagef("give --key or --data, not both")
			}
			old, err := a.settings()
			if err != nil {
				return err
			}
			if data != "" {
				in.Address = cmp.Or(in.Address, a.getenv("DOZE_ADDRESS"), addressOf(data), old.Address, localAddress)
			}
			in.Address = cmp.Or(in.Address, old.Address)
			if in.Address == "" {
				return usagef("--address is required")
			}
			if in.Key == "" {
				if in.Key, err = a.readKey(data); err != nil {
					return err
				}
			}
			c, err := client.New(in.config())
			if err != nil {
				return err
			}
			all, err := c.Workspaces(cmd.Context())
			if err != nil {
				return err
			}
			if data != "" && in.Workspace == "" {
				in.Workspace = homeOf(all, old.Workspace)
			}
			if in.Workspace, err = choose(all, in.Workspace); err != nil {
				return err
			}
			if err := a.save(in); err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.err, "logged in to %s, workspace %s\n", in.Address, in.Workspace)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&in.Address, "address", "", "`URL` of the server")
	f.StringVar(&in.Key, "key", "", "API `key`; other users of this host can see arguments, so prefer standard input")
	f.StringVar(&in.Workspace, "workspace", "", "workspace `name`, if the key has several")
	f.StringVar(&data, "data", "", "data `directory` of a local server; doze uses its address and admin.key")
	return cmd
}

// addressOf is where the server of a data directory says that it is. A server
// that never ran, or an older one, says nothing.
func addressOf(data string) string {
	var instance struct {
		Address string `json:"address"`
	}
	b, err := os.ReadFile(filepath.Join(data, "instance.json"))
	if err != nil || json.Unmarshal(b, &instance) != nil {
		return ""
	}
	return instance.Address
}

// readKey takes the key out of a data directory, the environment, or standard
// input.
func (a *app) readKey(data string) (string, error) {
	if data != "" {
		b, err := os.ReadFile(filepath.Join(data, "admin.key"))
		if err != nil {
			err = fmt.Errorf("%w: --data must be the data directory of a local dozed; only root can read it", err)
		}
		return strings.TrimSpace(string(b)), err
	}
	if key := a.getenv("DOZE_KEY"); key != "" {
		return key, nil
	}
	if f, ok := a.in.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		a.say("API key: ")
		b, err := term.ReadPassword(int(f.Fd()))
		a.say("\n")
		return strings.TrimSpace(string(b)), err
	}
	line, err := bufio.NewReader(io.LimitReader(a.in, keyMax)).ReadString('\n')
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if line = strings.TrimSpace(line); line == "" && err == nil {
		return "", usagef("give a key on standard input, or with --key or --data")
	}
	return line, err
}

// homeOf is the workspace of the administrator of a server of this host. It is the
// one that was chosen before, or else the first one, which came with the server.
func homeOf(all []doze.Workspace, before string) string {
	if len(all) == 0 || slices.ContainsFunc(all, func(w doze.Workspace) bool { return w.Name == before }) {
		return before
	}
	return slices.MinFunc(all, func(a, b doze.Workspace) int { return a.CreatedAt.Compare(b.CreatedAt.Time) }).Name
}

// choose returns the workspace to use.
func choose(all []doze.Workspace, wanted string) (string, error) {
	names := make([]string, len(all))
	for i, w := range all {
		names[i] = w.Name
	}
	switch {
	case wanted != "" && slices.Contains(names, wanted):
		return wanted, nil
	case wanted != "":
		return "", fmt.Errorf("the key has no access to the workspace %q; it has: %s", wanted, strings.Join(names, ", "))
	case len(names) == 1:
		return names[0], nil
	case len(names) == 0:
		return "", errors.New("the key has no access to any workspace")
	default:
		return "", usagef("the key has several workspaces: choose one of %s with --workspace", strings.Join(names, ", "))
	}
}
