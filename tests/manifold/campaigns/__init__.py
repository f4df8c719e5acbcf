"""Tests of campaigns: tables for refused plans, properties for the promises of a campaign."""
