"""What planners read off an assignment: tables of links, skims, select-link, classes, tolls."""
