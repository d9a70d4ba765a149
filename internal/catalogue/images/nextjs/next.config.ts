import type { NextConfig } from "next";

const nextConfig: NextConfig = {
  // Hosts besides localhost that may load what the dev server alone serves, such as
  // *.preview.example.com.
  allowedDevOrigins: process.env.ALLOWED_DEV_ORIGINS?.split(","),
  turbopack: {
    rules: {
      "*.css": { loaders: ["@tailwindcss/turbopack"], as: "*.css" },
    },
  },
};

export default nextConfig;
