//! The list of the ancestors' defects is complete: each number once, each with its test or the reason why it has none.

/// The table.
const LIST: &str = include_str!("../../../docs/ancestors.md");
/// The tests.
const TESTS: [&str; 3] = [
    include_str!("correctness.rs"),
    include_str!("robustness.rs"),
    include_str!("translation.rs"),
];

/// R0 to R15, W1 to W22.
fn numbers() -> impl Iterator<Item = String> {
    (0..=15)
        .map(|n| format!("R{n}"))
        .chain((1..=22).map(|n| format!("W{n}")))
}

/// The last column of each row of this number.
fn entries(number: &str) -> Vec<&'static str> {
    let row = format!("| {number} |");
    let rows = LIST.lines().filter(|line| line.starts_with(&row));
    rows.map(|row| row.trim_end_matches('|').rsplit('|').next().expect("a column").trim())
        .collect()
}

/// The functions among the tests whose names begin with the number: `r05_`, `w17_`.
fn tests_of(number: &str) -> Vec<&'static str> {
    let (letter, digits) = number.split_at(1);
    let start = format!("fn {}{digits:0>2}_", letter.to_lowercase());
    let lines = TESTS.iter().flat_map(|text| text.lines());
    lines
        .filter(|line| line.starts_with(&start))
        .map(|line| line[3..].split('(').next().expect("a name"))
        .collect()
}

#[test]
fn every_defect_of_the_ancestors_is_listed_once_with_its_test_or_a_reason() {
    for number in numbers() {
        let [entry] = entries(&number)[..] else {
            panic!("{number} is listed {} times", entries(&number).len())
        };
        match tests_of(&number)[..] {
            [test] => assert_eq!(entry, format!("`{test}`"), "{number}"),
            [] => assert!(entry.starts_with("no object") && entry.len() > 30, "{number}: {entry}"),
            ref several => panic!("{number} has several tests: {several:?}"),
        }
    }
    // Nothing is listed that has no number.
    let rows = LIST
        .lines()
        .filter(|line| line.starts_with("| R") || line.starts_with("| W"));
    assert_eq!(rows.count(), numbers().count());
    let named = numbers().flat_map(|number| tests_of(&number)).count();
    let is_test = |line: &&str| {
        let name = line.strip_prefix("fn ").unwrap_or_default().as_bytes();
        matches!(name, [b'r' | b'w', b'0'..=b'9', b'0'..=b'9', b'_', ..])
    };
    assert_eq!(
        TESTS.iter().flat_map(|text| text.lines()).filter(is_test).count(),
        named
    );
}
