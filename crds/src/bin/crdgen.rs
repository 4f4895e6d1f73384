//! Prints the CustomResourceDefinitions as YAML.
fn main() {}
