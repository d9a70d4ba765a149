package e2e_test

import (
	"strings"
	"testing"
)

// TestBaseImage: what people expect works in the image of a sandbox that names none.
func TestBaseImage(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	_, agent := create(t, c, named("base", 1024))
	for _, program := range []string{"git", "curl", "jq", "unzip", "zip", "make", "gcc", "g++", "node", "npm", "npx", "python", "python3", "pip", "pip3"} {
		sh(t, agent, "command -v "+program)
	}
	if got := sh(t, agent, "node --version"); !strings.HasPrefix(got, "v24.") {
		t.Errorf("Node.js is %s", got)
	}
	if got := sh(t, agent, "npm --version"); !strings.HasPrefix(got, "11.") {
		t.Errorf("npm is %s", got)
	}
	// Without a registry: a package that is in the sandbox.
	const local = `mkdir -p /tmp/mine && cd /tmp/mine && echo 'def word(): return "installed"' > mine.py &&
printf '[build-system]\nrequires = []\nbuild-backend = "back"\nbackend-path = ["."]\n' > pyproject.toml &&
cat > back.py <<'END'
import zipfile
def build_wheel(directory, config_settings=None, metadata_directory=None):
    with zipfile.ZipFile(directory + "/mine-1-py3-none-any.whl", "w") as z:
        z.write("mine.py")
        z.writestr("mine-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
        z.writestr("mine-1.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr("mine-1.dist-info/RECORD", "mine.py,,\nmine-1.dist-info/METADATA,,\nmine-1.dist-info/WHEEL,,\nmine-1.dist-info/RECORD,,\n")
    return "mine-1-py3-none-any.whl"
END
pip install --no-index --no-build-isolation . >&2 && cd / && python -c 'import mine; print(mine.word())'`
	if got := sh(t, agent, local); got != "installed" {
		t.Errorf("pip: %s", got)
	}
	const compiled = `cd /tmp && printf 'int main(void) { return 7; }' > a.c && gcc a.c -o a && (./a; echo $?)`
	if got := sh(t, agent, compiled); got != "7" {
		t.Errorf("gcc: %s", got)
	}
	const global = `mkdir -p /tmp/tool && cd /tmp/tool && printf '{"name":"tool","version":"1.0.0","bin":"tool.js"}' > package.json &&
printf '#!/usr/bin/env node\nconsole.log("a tool")\n' > tool.js && npm install --global --offline . >&2 && tool`
	if got := sh(t, agent, global); got != "a tool" {
		t.Errorf("npm: %s", got)
	}
}
