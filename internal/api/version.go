package api

import (
	"net/http"
	"strings"

	"github.com/dozehq/doze"
)

const (
	bareLists  = "2026-04-16"
	pagedLists = "2026-04-28"
)

// versionOf returns the version that a request asks for.
func versionOf(r *http.Request) (string, error) {
	asked := r.Header.Get("Blaxel-Version")
	switch v := strings.TrimSuffix(asked, ".preview"); v {
	case "":
		if asked == "" {
			return bareLists, nil
		}
	case bareLists, pagedLists:
		return v, nil
	}
	return "", &doze.Error{
		Kind: doze.Invalid, Name: doze.NameVersion,
		Message: "the header blaxel-version must be " + bareLists + " or " + pagedLists,
	}
}
