package disk

import (
	"slices"
	"strings"

	"github.com/dozehq/doze"
)

// A recipe is an image that is made on this machine out of Debian packages.
type recipe struct {
	name     string
	packages []string
	env      []string
}

const pathDefault = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

var (
	slim = recipe{
		name:     "slim",
		packages: []string{"bash", "coreutils", "procps", "iproute2", "curl", "ca-certificates"},
		env:      []string{pathDefault, "LANG=C.UTF-8"},
	}
	base = recipe{
		name: "base",
		packages: slices.Concat(slim.packages, []string{
			"git", "nodejs", "npm", "python3", "python3-pip", "python3-venv",
		}),
		env: slim.env,
	}
	recipes = []*recipe{&base, &slim}
)

// family is the prefix of names that mean an image of ours. There is one version
// of each: the one that this platform makes.
// blaxel is what the public clients write.
var family = []string{"blaxel/", "doze/"}

// catalog is every name that clients know. A row without a recipe is a name
// whose software we do not ship; missing says which.
var catalog = []struct {
	name    string
	display string
	about   string
	memory  doze.Megabytes
	port    int // what its programs usually serve; 0 for none
	recipe  *recipe
	missing string
}{
	{name: "base-image", display: "Base image", about: "Debian with a shell, Python, Node.js and git", memory: 4096, recipe: &base},
	{name: "base", display: "Base", about: "the same as base-image", memory: 4096, recipe: &base},
	{name: "slim", display: "Slim", about: "Debian with a shell and curl, no languages", memory: 1024, recipe: &slim},
	{name: "node", display: "Node.js", about: "the base image, for Node.js programs", memory: 2048, recipe: &base},
	{name: "node-slim", display: "Node.js, small", about: "the base image, for small Node.js programs", memory: 1024, recipe: &base},
	{name: "py-app", display: "Python app", about: "the base image, for a Python server", memory: 4096, port: 8000, recipe: &base},
	{name: "ts-app", display: "TypeScript app", about: "the base image, for a TypeScript server", memory: 4096, port: 3000, recipe: &base},
	{name: "nextjs", display: "Next.js", about: "the base image, for a Next.js project", memory: 4096, port: 3000, recipe: &base},
	{name: "vite", display: "Vite", about: "the base image, for a Vite project", memory: 4096, port: 5173, recipe: &base},
	{name: "astro", display: "Astro", about: "the base image, for an Astro project", memory: 4096, port: 4321, recipe: &base},
	{name: "expo", display: "Expo", about: "the base image, for an Expo project", memory: 8192, port: 8081, recipe: &base},

	{name: "app-runner", missing: "its build tools"},
	{name: "benchmark", missing: "its benchmark programs"},
	{name: "chromium", missing: "the Chromium browser"},
	{name: "claude-code", missing: "the Claude Code program"},
	{name: "codex", missing: "the Codex program"},
	{name: "cua-xfce", missing: "the Xfce desktop"},
	{name: "docker-in-sandbox", missing: "the Docker engine"},
	{name: "jupyter-notebook", missing: "Jupyter"},
	{name: "jupyter-server", missing: "Jupyter"},
	{name: "lightpanda", missing: "the Lightpanda browser"},
	{name: "playwright-chromium", missing: "Playwright and its browser"},
	{name: "playwright-firefox", missing: "Playwright and its browser"},
	{name: "tailscale", missing: "Tailscale"},
	{name: "xfce-vnc", missing: "the Xfce desktop"},
}

// Offer is one image that a caller can choose, as the hub shows it.
type Offer struct {
	Name        string         `json:"name"`
	DisplayName string         `json:"displayName"`
	Image       string         `json:"image"`
	Memory      doze.Megabytes `json:"memory"`
	Ports       []doze.Port    `json:"ports"`
	Description string         `json:"description"`
}

// Hub returns the images that every machine of the platform can make.
func Hub() []Offer {
	var offers []Offer
	for _, row := range catalog {
		if row.recipe == nil {
			continue
		}
		ports := []doze.Port{}
		if row.port != 0 {
			ports = append(ports, doze.Port{Target: row.port, Protocol: "HTTP"})
		}
		offers = append(offers, Offer{
			Name: row.name, DisplayName: row.display, Image: family[0] + row.name + ":latest",
			Memory: row.memory, Ports: ports, Description: row.about,
		})
	}
	return offers
}

// supported returns the references of the hub, for error messages.
func supported() []string {
	var refs []string
	for _, o := range Hub() {
		refs = append(refs, o.Image)
	}
	return refs
}

// platform returns the recipe that a path means. ours is false for a path that
// is not a name of ours; missing is what a name of ours lacks.
func platform(path string) (r *recipe, missing string, ours bool) {
	for _, r := range recipes {
		if path == r.name {
			return r, "", true
		}
	}
	for _, prefix := range family {
		name, ok := strings.CutPrefix(path, prefix)
		if !ok {
			continue
		}
		for _, row := range catalog {
			if row.name == name {
				return row.recipe, row.missing, true
			}
		}
	}
	return nil, "", false
}
