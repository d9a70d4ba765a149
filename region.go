package doze

// AnyRegion is the region of a caller that leaves the choice to the platform.
const AnyRegion = "auto"

// Region is where sandboxes run (section 12 of the public API). A platform is one
// place, which may have several names. Each of them is a region.
type Region struct {
	Name       string `json:"name"`
	Location   string `json:"location"`
	Generation string `json:"infoGeneration"`
	MK31       bool   `json:"mk31Available"`
	Drives     bool   `json:"drivesAvailable"`
	Egress     bool   `json:"egressAvailable"` // by addresses of their own
	Proxy      bool   `json:"proxyAvailable"`
}

// Named is a continent, a country or a location of somebody's own.
type Named struct {
	Name        string `json:"name"`
	DisplayName string `json:"displayName,omitempty"`
}

// Configuration is what clients ask to know what they can choose from.
type Configuration struct {
	Continents       []Named  `json:"continents"`
	Countries        []Named  `json:"countries"`
	Regions          []Region `json:"regions"`
	PrivateLocations []Named  `json:"privateLocations"`
	DetectedRegion   string   `json:"detectedRegion"`
}

// Location is a region in an older form.
type Location struct {
	Location string   `json:"location"`
	Region   string   `json:"region"`
	Status   string   `json:"status"`
	Flavors  []Flavor `json:"flavors"`
}

// Flavor is a kind of hardware.
type Flavor struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

// Addresses are those from which sandboxes of a region reach others.
type Addresses struct {
	Description string   `json:"description"`
	IPv4        []string `json:"ipv4Cidrs"`
	IPv6        []string `json:"ipv6Cidrs"`
}

// Feature is a switch that clients look at, as it is for a caller.
type Feature struct {
	Key         string `json:"featureKey"`
	Enabled     bool   `json:"enabled"`
	Variant     string `json:"variant"` // of several; empty is none
	Payload     any    `json:"payload"` // of the variant; null is none
	EvaluatedAt Time   `json:"evaluatedAt"`
}
