package serve

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/dozehq/doze/internal/buildapi"

	"github.com/dozehq/doze/builder/unpack"
)

const (
	// argsFile has build arguments, a NAME=value in each line.
	argsFile = ".env.build"
	// loginsFile is Docker's file with logins for registries.
	loginsFile = ".docker/config.json"
	// settingsMax bounds each of them, in bytes.
	settingsMax = 1 << 20
	// loginsMax bounds the registries in one.
	loginsMax = 100
)

// takeSettings reads those files of a context that clients put there for the builder, and
// deletes them: an image must not have them.
func takeSettings(dir string) (args map[string]string, logins map[string]buildapi.Login, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = root.Close() }()
	text, err := take(root, argsFile)
	if err != nil {
		return nil, nil, err
	}
	if args, err = parseArgs(string(text)); err != nil {
		return nil, nil, err
	}
	text, err = take(root, loginsFile)
	if err != nil {
		return nil, nil, err
	}
	logins, err = parseLogins(text)
	return args, logins, err
}

// take reads a file, and deletes it. It returns nothing if there is none.
func take(root *os.Root, name string) ([]byte, error) {
	st, err := root.Stat(name)
	if err != nil || !st.Mode().IsRegular() {
		return nil, nil //nolint:nilerr // an archive without it, or with something else there
	}
	if st.Size() > settingsMax {
		return nil, &unpack.MistakeError{Text: fmt.Sprintf("%s has %d bytes, more than %d", name, st.Size(), settingsMax)}
	}
	raw, err := root.ReadFile(name)
	if err != nil {
		return nil, err
	}
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return raw, nil
}

// parseArgs reads lines of NAME=value. Quotes around a value are not part of it.
func parseArgs(text string) (map[string]string, error) {
	args := map[string]string{}
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimPrefix(strings.TrimSpace(line), "export ")
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		switch {
		case !ok || name == "":
			return nil, &unpack.MistakeError{Text: fmt.Sprintf("%s: line %d is not NAME=value", argsFile, n)}
		case strings.ContainsAny(name, " \t"):
			return nil, &unpack.MistakeError{Text: fmt.Sprintf("%s: line %d has a space in the name %.100q: remove it", argsFile, n, name)}
		}
		if len(value) >= 2 && (value[0] == '"' || value[0] == '\'') && value[len(value)-1] == value[0] {
			value = value[1 : len(value)-1]
		}
		args[name] = value
		switch {
		case len(args) > buildapi.ArgsMax:
			return nil, &unpack.MistakeError{Text: fmt.Sprintf("%s: line %d is one more than %d arguments", argsFile, n, buildapi.ArgsMax)}
		case len(name) > buildapi.ArgBytesMax || len(value) > buildapi.ArgBytesMax:
			return nil, &unpack.MistakeError{Text: fmt.Sprintf("%s: line %d has more than %d bytes", argsFile, n, buildapi.ArgBytesMax)}
		}
	}
	return args, nil
}

// parseLogins reads Docker's file with logins. Credential helpers in it are ignored: their
// programs are not here.
func parseLogins(text []byte) (map[string]buildapi.Login, error) {
	logins := map[string]buildapi.Login{}
	if len(text) == 0 {
		return logins, nil
	}
	var file struct {
		Auths map[string]struct {
			Auth     string `json:"auth"` // user:password in base64
			Username string `json:"username"`
			Password string `json:"password"`
		} `json:"auths"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, &unpack.MistakeError{Text: loginsFile + ": " + err.Error()}
	}
	if len(file.Auths) > loginsMax {
		return nil, &unpack.MistakeError{Text: fmt.Sprintf("%s: there are %d registries, more than %d", loginsFile, len(file.Auths), loginsMax)}
	}
	for host, a := range file.Auths {
		l := buildapi.Login{User: a.Username, Password: a.Password}
		if a.Auth != "" {
			raw, err := base64.StdEncoding.DecodeString(a.Auth)
			user, password, ok := strings.Cut(string(raw), ":")
			if err != nil || !ok {
				return nil, &unpack.MistakeError{Text: fmt.Sprintf("%s: auths[%.100q].auth is not user:password in base64", loginsFile, host)}
			}
			l = buildapi.Login{User: user, Password: password}
		}
		if l != (buildapi.Login{}) {
			logins[hostOf(host)] = l
		}
	}
	return logins, nil
}

// hostOf returns the host of a key of that file, which may be an address.
func hostOf(key string) string {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	host, _, _ := strings.Cut(key, "/")
	if host == "index.docker.io" {
		return "docker.io"
	}
	return host
}
