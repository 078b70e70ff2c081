"""Twenty questions, as unlike each other as a small model allows."""

PROMPTS = (
    "Name the planets of the solar system in order.",
    "Write a Python function that returns the sum of a list of numbers.",
    "Write an SQL query that counts the orders of each customer.",
    "Name the months of the year, one per line.",
    "Continue: 2, 4, 6, 8, 10,",
    "What is 17 plus 25? Explain step by step.",
    "Describe a bicycle in two sentences.",
    "Write a short poem about fog.",
    "Translate to French: The cat sleeps on the chair.",
    "¿Cuál es la capital de España? Responde en español.",
    "Nenne drei Städte in Deutschland.",
    "Repeat exactly: Привет, как дела? Всё хорошо.",
    "Repeat exactly: 東京は日本の首都です。",
    "Repeat exactly: 🌊 sea, 🌳 tree, ⭐ star, 🌊 sea",
    'Give a JSON object with the keys "name" and "age".',
    "Write an HTML page with a heading and a link to http://example.org/.",
    "Explain why the sky is blue to a child.",
    "Write a bash command that lists all files larger than 10 MB.",
    "Give me a recipe for pancakes as a numbered list.",
    "Who wrote Hamlet, and when?",
)
