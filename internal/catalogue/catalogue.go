// Package catalogue has the table of the images of the platform.
package catalogue

import (
	"slices"
	"strings"

	"github.com/dozehq/doze"
)

// What makes an image. The first two are recipes: the host makes them of Debian packages.
const (
	Slim = "slim"
	Base = "base"
	// Dockerfile is for images that the platform's builder makes of a directory of
	// Dockerfiles: see [Files].
	Dockerfile = "dockerfile"
)

// family is the prefix of names that mean an image of ours. There is one version
// of each: the one that this platform makes.
// blaxel is what the public clients write.
var family = []string{"blaxel/", "doze/"}

// A Row is a name that clients know. A recipe or a Dockerfile makes its image, or it is
// missing.
type Row struct {
	Name    string
	Display string
	About   string
	Memory  doze.Megabytes
	Port    int    // what its programs usually serve; 0 for none
	Recipe  string // [Slim], [Base] or [Dockerfile]; empty: it is missing
	Missing string // what this platform does not ship, and why
}

var rows = []Row{
	{Name: "base-image", Display: "Base image", About: "Debian with a shell, Python, Node.js, git and a compiler", Memory: 4096, Recipe: Base},
	{Name: "base", Display: "Base", About: "the same as base-image", Memory: 4096, Recipe: Base},
	{Name: "slim", Display: "Slim", About: "Debian with a shell and curl, no languages", Memory: 1024, Recipe: Slim},
	{Name: "node", Display: "Node.js", About: "the base image, for Node.js programs", Memory: 2048, Recipe: Base},
	{Name: "node-slim", Display: "Node.js, small", About: "the base image, for small Node.js programs", Memory: 1024, Recipe: Base},
	{Name: "py-app", Display: "Python app", About: "a Python server with FastAPI, in /blaxel/app", Memory: 4096, Port: 8000, Recipe: Dockerfile},
	{Name: "ts-app", Display: "TypeScript app", About: "a TypeScript server with its tools, in /blaxel/app", Memory: 4096, Port: 3000, Recipe: Dockerfile},
	{Name: "nextjs", Display: "Next.js", About: "a Next.js project with Tailwind CSS, in /blaxel/app", Memory: 4096, Port: 3000, Recipe: Dockerfile},
	{Name: "vite", Display: "Vite", About: "a Vite project with React, in /blaxel/app", Memory: 4096, Port: 5173, Recipe: Dockerfile},
	{Name: "astro", Display: "Astro", About: "an Astro project, in /blaxel/app", Memory: 4096, Port: 4321, Recipe: Dockerfile},
	{Name: "expo", Display: "Expo", About: "the base image, for an Expo project", Memory: 8192, Port: 8081, Recipe: Base},
	{Name: "jupyter-server", Display: "Code interpreter", About: "a code interpreter for Python, JavaScript and TypeScript, on Jupyter kernels", Memory: 4096, Port: 8888, Recipe: Dockerfile},
	{Name: "jupyter-notebook", Missing: "the current Jupyter Notebook, which is on PyPI only"},
	{Name: "chromium", Display: "Chromium", About: "the base image with the Chromium browser of Debian", Memory: 4096, Recipe: Dockerfile},
	{Name: "playwright-chromium", Display: "Playwright with Chromium", About: "Playwright for Node.js in /blaxel/app, with the Chromium browser of Debian", Memory: 4096, Recipe: Dockerfile},
	{Name: "xfce-vnc", Display: "Xfce desktop", About: "an Xfce desktop, which a page at port 6080 shows", Memory: 4096, Port: 6080, Recipe: Dockerfile},
	{Name: "benchmark", Missing: "its benchmark programs, which are not public"},
	{Name: "docker-in-sandbox", Display: "Docker", About: "the base image with Docker and Podman of Debian, for sandboxes with extraArgs.containers", Memory: 4096, Recipe: Dockerfile},
	{Name: "claude-code", Display: "Claude Code", About: "the base image with the program claude", Memory: 4096, Recipe: Dockerfile},
	{Name: "codex", Display: "Codex", About: "the base image with the program codex", Memory: 4096, Recipe: Dockerfile},

	{Name: "app-runner", Missing: "its build tools, which are not public"},
	{Name: "cua-xfce", Missing: "the Xfce desktop with its computer-use server, which is on PyPI only"},
	{Name: "lightpanda", Missing: "the Lightpanda browser, which is in no package registry"},
	{Name: "playwright-firefox", Missing: "Playwright's own Firefox, which is in no package registry"},
	{Name: "tailscale", Missing: "Tailscale, which is in no package registry"},
}

// Claims reports whether a reference has a prefix of names that mean an image of ours, whether or
// not there is one.
func Claims(ref string) bool {
	return slices.ContainsFunc(family, func(prefix string) bool { return strings.HasPrefix(ref, prefix) })
}

// Rows returns the table.
func Rows() []Row { return slices.Clone(rows) }

// Lookup returns the row of a reference without its tag, such as blaxel/nextjs. The
// names of the recipes need no prefix.
func Lookup(ref string) (Row, bool) {
	if ref == Slim || ref == Base {
		return named(ref)
	}
	for _, prefix := range family {
		if name, ok := strings.CutPrefix(ref, prefix); ok {
			return named(name)
		}
	}
	return Row{}, false
}

func named(name string) (Row, bool) {
	i := slices.IndexFunc(rows, func(r Row) bool { return r.Name == name })
	if i < 0 {
		return Row{}, false
	}
	return rows[i], true
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

// Hub returns the images that every host of the platform can make.
func Hub() []Offer {
	var offers []Offer
	for _, row := range rows {
		if row.Missing != "" {
			continue
		}
		ports := []doze.Port{}
		if row.Port != 0 {
			ports = append(ports, doze.Port{Target: row.Port, Protocol: "HTTP"})
		}
		offers = append(offers, Offer{
			Name: row.Name, DisplayName: row.Display, Image: family[0] + row.Name + ":" + doze.TagDefault,
			Memory: row.Memory, Ports: ports, Description: row.About,
		})
	}
	return offers
}

// Supported returns the references of the hub, for error messages.
func Supported() []string {
	var refs []string
	for _, o := range Hub() {
		refs = append(refs, o.Image)
	}
	return refs
}
