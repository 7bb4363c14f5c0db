//! Checks that every configuration in the guide is valid.

use idem_runtime::{Idem, Policies};

#[test]
fn every_configuration_in_the_guide_is_valid() {
    let guide = include_str!("../../../docs/policies.md");
    let blocks: Vec<&str> = guide
        .split("```toml\n")
        .skip(1)
        .filter_map(|block| block.split("```").next())
        .collect();
    assert!(
        blocks.len() >= 4,
        "the guide has {} configurations",
        blocks.len()
    );
    for block in blocks {
        let policies: Policies =
            toml::from_str(block).unwrap_or_else(|error| panic!("{error}\n{block}"));
        let built = Idem::builder().policies(policies).build();
        assert!(built.is_ok(), "{built:?}\n{block}");
    }
}
