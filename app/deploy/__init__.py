"""One description of a deployment, and each platform's own form of it; never imported by a serving process."""
