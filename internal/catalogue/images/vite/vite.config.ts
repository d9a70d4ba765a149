import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

// The host of a preview is not known here, and the platform decides who reaches it.
const server = { host: "0.0.0.0", port: 5173, allowedHosts: true } as const;

export default defineConfig({ plugins: [react()], server, preview: server });
