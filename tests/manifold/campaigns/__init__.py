"""Tests of campaigns: tables for what the plan refuses, properties for what a campaign promises."""
