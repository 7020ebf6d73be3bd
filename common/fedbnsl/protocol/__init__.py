"""The messages between coordinator and sites, and their form on the wire."""
