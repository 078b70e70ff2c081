from specollama.cli import main

main()
