//! Searches for circles in the graph of the files of a crate.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// One file uses another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Used {
    pub from: String,
    pub to: String,
    /// The line of the use, counted from 1.
    pub line: usize,
}

/// Files that use each other, directly or through others.
#[derive(Debug)]
pub struct Circle {
    pub files: Vec<String>,
    /// A shortest way from the first file back to itself.
    pub shortest: Vec<Used>,
}

/// The files of a crate. For each file, the files that it uses and the first line that uses each.
#[derive(Default)]
pub struct Graph {
    edges: BTreeMap<String, BTreeMap<String, usize>>,
}

impl Graph {
    pub fn extend(&mut self, uses: Vec<Used>) {
        for used in uses {
            let line = self
                .edges
                .entry(used.from)
                .or_default()
                .entry(used.to)
                .or_insert(used.line);
            *line = used.line.min(*line);
        }
    }

    /// Returns the circles, each as large as possible: two circles have no file in common.
    pub fn circles(&self) -> Vec<Circle> {
        let mut circles: Vec<Circle> = Vec::new();
        let mut seen = BTreeSet::new();
        for file in self.edges.keys() {
            if seen.contains(file) {
                continue;
            }
            let Some(shortest) = self.way(file, file) else {
                continue;
            };
            let files: Vec<String> = self
                .edges
                .keys()
                .filter(|other| {
                    *other == file
                        || (self.way(file, other).is_some() && self.way(other, file).is_some())
                })
                .cloned()
                .collect();
            seen.extend(files.clone());
            circles.push(Circle { files, shortest });
        }
        circles
    }

    /// Returns a shortest chain of at least one use that leads from one file to another, or to
    /// itself.
    fn way(&self, from: &str, to: &str) -> Option<Vec<Used>> {
        let mut came_by: BTreeMap<&str, Used> = BTreeMap::new();
        let mut queue = VecDeque::from([from]);
        while let Some(file) = queue.pop_front() {
            for (other, line) in self.edges.get(file).into_iter().flatten() {
                if !came_by.contains_key(other.as_str()) {
                    let used = Used {
                        from: file.to_owned(),
                        to: other.clone(),
                        line: *line,
                    };
                    came_by.insert(other, used);
                    queue.push_back(other);
                }
            }
            if came_by.contains_key(to) {
                break;
            }
        }
        let mut way = vec![came_by.get(to)?.clone()];
        while let Some(first) = way.first().filter(|used| used.from != from) {
            let before = came_by.get(first.from.as_str())?.clone();
            way.insert(0, before);
        }
        Some(way)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(edges: &[(&str, &str)]) -> Graph {
        let mut graph = Graph::default();
        let used = |(line, (from, to)): (usize, &(&str, &str))| Used {
            from: (*from).to_owned(),
            to: (*to).to_owned(),
            line,
        };
        graph.extend(edges.iter().enumerate().map(used).collect());
        graph
    }

    #[test]
    fn circle_is_reported_once_with_its_shortest_way() {
        let edges = [("a", "b"), ("b", "c"), ("c", "a"), ("b", "a"), ("a", "d")];
        let circles = graph(&edges).circles();
        assert_eq!(circles.len(), 1);
        assert_eq!(circles[0].files, ["a", "b", "c"]);
        let shortest: Vec<_> = circles[0].shortest.iter().map(|used| used.line).collect();
        assert_eq!(shortest, [0, 3]);
    }

    #[test]
    fn separate_circles_are_reported_separately() {
        let edges = [("a", "b"), ("b", "a"), ("b", "c"), ("c", "d"), ("d", "c")];
        let circles = graph(&edges).circles();
        let files: Vec<_> = circles.into_iter().map(|circle| circle.files).collect();
        assert_eq!(files, [["a", "b"], ["c", "d"]]);
    }

    #[test]
    fn graph_without_a_circle_is_accepted() {
        let edges = [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")];
        assert!(graph(&edges).circles().is_empty());
    }
}
