//! docs/roles.md names for each kind what `idem_grant` gives.

use anyhow::{Context, Result};
use idem_cluster::workspace_root;
use idem_tests::harness::Database;

/// The rows of the table under a heading: the kind, and the names in its last cell in order.
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

/// Goal: the page and the grants are one list.
#[tokio::test]
async fn page_of_roles_names_what_each_kind_is_granted() -> Result<()> {
    let page = std::fs::read_to_string(workspace_root().join("docs/roles.md"))?;
    let db = Database::with_idem("roles_page").await?;
    let session = db.connect().await?;
    for (heading, table, column) in [
        ("\n## Functions\n", "kind_of_role", "may_call"),
        ("\n## Views\n", "view_of_kind", "may_read"),
    ] {
        let granted = session
            .text(&format!(
                "SELECT kind, string_agg({column}, ',' ORDER BY {column} COLLATE \"C\") FROM idem.{table} GROUP BY kind ORDER BY kind"
            ))
            .await?;
        let mut said = rows(&page, heading)?;
        said.sort();
        assert_eq!(said, granted.lines().collect::<Vec<_>>(), "{heading}");
    }
    Ok(())
}
