//! Tests that docs/roles.md lists for each kind the privileges that `idem_grant` gives.

use anyhow::{Context, Result};
use idem_cluster::workspace_root;
use idem_testkit::Database;

/// Returns the rows of the table under a heading: the kind, and the names in the last cell in their
/// order.
fn rows(page: &str, heading: &str) -> Result<Vec<String>> {
    let (_, section) = page
        .split_once(heading)
        .with_context(|| format!("the page has no {heading}"))?;
    let section = section.split("\n## ").next().unwrap_or(section);
    let names = |cell: &str| {
        let names = cell
            .split(", ")
            .map(|name| name.trim_matches('`').trim_start_matches("idem."));
        names.collect::<Vec<_>>().join(",")
    };
    let row = |line: &str| {
        let cells: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        match cells[..] {
            [kind, all] if kind.starts_with('`') => {
                Some(format!("{}|{}", kind.trim_matches('`'), names(all)))
            }
            _ => None,
        }
    };
    Ok(section
        .lines()
        .filter_map(row)
        .filter(|row| !row.ends_with("|none"))
        .collect())
}

/// The page and the grants list the same privileges for each kind.
#[tokio::test]
async fn roles_page_lists_the_privileges_of_each_kind() -> Result<()> {
    let page = std::fs::read_to_string(workspace_root().join("docs/roles.md"))?;
    let db = Database::with_idem("roles_page").await?;
    let session = db.connect().await?;
    for (heading, table, column) in [
        ("\n## Functions\n", "kind_of_role", "may_call"),
        ("\n## Views\n", "view_of_kind", "may_read"),
    ] {
        let granted = session
            .text(&format!(
                "SELECT kind, string_agg({column}, ',' ORDER BY {column} COLLATE \"C\")
                   FROM idem.{table} GROUP BY kind ORDER BY kind"
            ))
            .await?;
        let mut listed = rows(&page, heading)?;
        listed.sort();
        assert_eq!(listed, granted.lines().collect::<Vec<_>>(), "{heading}");
    }
    Ok(())
}
