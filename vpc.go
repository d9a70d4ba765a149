package doze

// DefaultVPC is the network that every workspace has.
const DefaultVPC = "default"

// NetworkMetadata is what networks, their gateways and addresses share (spec
// 2.1). VPCName and GatewayName say where one belongs.
type NetworkMetadata struct {
	Name        string `json:"name"`
	DisplayName string `json:"displayName,omitempty"`
	GatewayName string `json:"gatewayName,omitempty"`
	VPCName     string `json:"vpcName,omitempty"`
	Workspace   string `json:"workspace,omitempty"`
	CreatedAt   Time   `json:"createdAt,omitzero"`
	UpdatedAt   Time   `json:"updatedAt,omitzero"`
	CreatedBy   string `json:"createdBy,omitempty"`
	UpdatedBy   string `json:"updatedBy,omitempty"`
}

// NetworkResource is a VPC, an egress gateway or an egress IP (spec 2.10 and
// 2.11): they have one form, and each uses its members of the spec.
type NetworkResource struct {
	Metadata NetworkMetadata `json:"metadata"`
	Spec     NetworkSpec     `json:"spec"`
	Status   string          `json:"status"`
	Events   []Event         `json:"events"`
}

// NetworkSpec is what a caller wants: the region of a gateway, the family of
// an address. PublicIP is set by us.
type NetworkSpec struct {
	Region   string `json:"region,omitempty"`
	IPFamily string `json:"ipFamily,omitempty"`
	PublicIP string `json:"publicIp,omitempty"`
}

// Families of addresses.
const (
	IPv4 = "IPv4"
	IPv6 = "IPv6"
)
